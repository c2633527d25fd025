//! The storage under openraft.

mod crashes;
mod faults;
mod messages;
mod reopening;
mod suite;
mod support;
