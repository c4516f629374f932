//! What a controller has done to move a volume to another node or another pool, or to keep a copy of it on another node
//! (docs/decisions/0019).
//!
//! The copy is a volume whose record says which cut of its source it has. The node of the source keeps that cut. UpdateCopy has
//! a new one made, records it as what the copy is being given, applies what differs, and records that it has it. Whatever ends
//! in between, the record says of which two cuts each block may be, and both are still there: the same again, from the start,
//! makes it whole. Only then is the earlier cut given up.

mod complete_copy;
mod delete_copy;
mod forget_volume;
mod reclaim_volume;
mod release_cuts;
mod retire_volume;
mod seal_volume;
mod staged_before;
mod update_copy;
