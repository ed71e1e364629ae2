"""The last step to the training loop: the iterator that users hold, and page-locked memory."""
