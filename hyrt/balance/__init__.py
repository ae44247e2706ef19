"""Resource manager and its policies, which assign targets to trainers and threads to stages."""
