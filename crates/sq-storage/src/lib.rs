//! A segmented write-ahead log that is honest after any crash.
