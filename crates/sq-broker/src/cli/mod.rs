//! The commands of `sq` that are not `serve`.
