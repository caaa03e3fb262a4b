#!/usr/bin/env bash
# Train a published checkpoint of the zoo further, by SimCSE on sentences of your own (a text file, one a line):
#
#   examples/continue_training.sh ORG/NAME sentences.txt runs/further [--key value ...]
#
# The encoder goes on where it was published; heads that only training has start fresh. Give the checkpoint's own recipe
# in the place of this one to train by its method.
set -euo pipefail
base_model=$1 train_file=$2 output_dir=$3
shift 3
accelerate launch -m csezoo.training.train simcse-bert-base-uncased --name "$(basename "$output_dir")" \
    --base_model "$base_model" --train_file "$train_file" --output_dir "$output_dir" "$@"
