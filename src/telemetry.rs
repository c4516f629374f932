//! Logging: only to stderr, as CSI requires, in UTC.

use std::io;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;

/// What is logged, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logging {
    /// The least important messages that are logged.
    pub level: LogLevel,
    /// Their form.
    pub format: LogFormat,
}

/// How important a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Something is broken.
    Error,
    /// A call failed, or something needs a look.
    Warn,
    /// What changed.
    Info,
    /// What was asked, too.
    Debug,
    /// Every step.
    Trace,
}

impl LogLevel {
    /// Every level, the most important first.
    pub const ALL: [LogLevel; 5] =
        [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];

    /// Its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }

    const fn filter(self) -> LevelFilter {
        match self {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        }
    }
}

/// The form of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}

/// Logs to stderr from now on. A second call changes nothing.
pub fn init(logging: Logging) {
    let _ = tracing::subscriber::set_global_default(subscriber(logging, io::stderr));
}

/// The subscriber, writing to `writer`. Only hostloop itself logs below `warn`: the HTTP crates would show
/// frames, and so the secrets of requests.
pub fn subscriber<W>(logging: Logging, writer: W) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target(env!("CARGO_PKG_NAME"), logging.level.filter());
    let layer =
        fmt::layer().with_writer(writer).with_ansi(false).with_target(false).with_span_events(FmtSpan::NONE);
    let registry = tracing_subscriber::registry().with(filter);
    match logging.format {
        LogFormat::Text => Box::new(registry.with(layer)),
        LogFormat::Json => Box::new(registry.with(layer.json().with_span_list(false).flatten_event(true))),
    }
}
