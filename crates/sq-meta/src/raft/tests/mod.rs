//! The storage under openraft.

mod crashes;
mod faults;
mod reopening;
mod suite;
mod support;
