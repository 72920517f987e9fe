"""Methods of pre-training other than by labels, one file each."""
