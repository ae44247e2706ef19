"""What a package of a third party can add to hyrt, one file an addition."""
