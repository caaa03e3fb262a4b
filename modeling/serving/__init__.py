"""What a published repository carries: copies of these files, which import torch, transformers and each other."""
