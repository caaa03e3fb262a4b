#!/usr/bin/env bash
# Train a checkpoint of the zoo further, with SimCSE on your sentences (a text file, one per line):
#
#   examples/continue_training.sh ORG/NAME sentences.txt runs/further [--key value ...]
#
# The checkpoint is a directory or a Hub id. Training starts from its encoder, with new training heads. To train with
# the checkpoint's method, use its recipe instead of this one.
set -euo pipefail
base_model=$1 train_file=$2 output_dir=$3
shift 3
accelerate launch -m csezoo.training.train simcse-bert-base-uncased --name "$(basename "$output_dir")" \
    --base_model "$base_model" --train_file "$train_file" --output_dir "$output_dir" "$@"
