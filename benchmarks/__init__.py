"""Speed and memory of curvature and of factored paths, as ratios against a peer and a lower bound in one run."""
