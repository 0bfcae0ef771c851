"""What a running deployment tells about itself: metrics, logs and benchmark results, read without trusting them."""
