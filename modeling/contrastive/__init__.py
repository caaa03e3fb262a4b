"""The training side of every method: the models it changes, the encoder passes, the losses they share."""
