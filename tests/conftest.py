"""Its folder goes on the path, so that the modules beside it are shared by every kind of test."""
