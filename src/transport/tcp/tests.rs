//! Two ranks in one thread.
