//! What an administrator sees of a driver: metrics, health, the log, the process and its commands.

mod bench;
mod expiry;
mod log_objects;
mod monitoring;
pub mod scrape;
mod secrets;
mod silent;
mod values;
mod volume_health;
mod volumes;
