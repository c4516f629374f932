//! What is logged.

use std::io;
use std::sync::{Arc, Mutex};

use hostloop::telemetry::{LogFormat, LogLevel, Logging, subscriber};

#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// What this thread logs from now on, while the second value lives. The runtime of a `#[tokio::test]` has this thread
/// only.
pub fn listen() -> (Lines, impl Sized) {
    let lines = Lines::default();
    let writer = lines.clone();
    let logging = Logging { level: LogLevel::Info, format: LogFormat::Text };
    let guard = tracing::subscriber::set_default(subscriber(logging, move || writer.clone()));
    // Where there is one dispatcher only, tracing asks the thread that first comes to a line of code whether anybody
    // wants it, and another test's thread would say no for all.
    let second = tracing::Dispatch::new(subscriber(logging, io::sink));
    (lines, (second, guard))
}
