"""The backward pass: the tape of a run reversed, a block's vjp, gradients of any order."""
