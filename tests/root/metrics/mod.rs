//! What an administrator sees of a driver: metrics, health, the log, the process and its commands.

mod bench;
mod logs;
pub mod process;
mod selftest;
mod volume_health;
