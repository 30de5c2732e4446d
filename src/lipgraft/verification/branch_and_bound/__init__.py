"""Branch and bound over one pool of subproblems of all images and target classes."""
