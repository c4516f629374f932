//! The flags for operating the process: metrics, probes, and registration with kubelet.

use super::OperationConfig;
use crate::cli::{ConfigError, OperationArgs, absolute};
use crate::model::{Limits, Settings};
use crate::register::Introduction;
use crate::server::Endpoint;

/// The default of `--volume-metrics`. Three time series for each volume are no burden for Prometheus up to here.
const VOLUME_METRICS: usize = 1000;

type Result<T> = std::result::Result<T, ConfigError>;

/// `settings` are those of the volumes, which a process that registers has ([`super::roles`]).
pub(super) fn operation(
    args: &OperationArgs,
    endpoint: &Endpoint,
    settings: Option<&Settings>,
) -> Result<OperationConfig> {
    let registration = match settings.filter(|_| args.register) {
        Some(settings) => Some(introduction(args, endpoint, &settings.driver_name)?),
        None => None,
    };
    let (metrics_listen, health_listen) = (args.metrics_listen.flatten(), args.health_listen.flatten());
    if health_listen.is_some_and(|address| address.port() != 0 && metrics_listen == Some(address)) {
        return Err(wrong("health_listen", "it is the address of --metrics-listen; use another port"));
    }
    let default = Limits::default();
    let limits = Limits {
        copies: args.max_copies.flatten().unwrap_or(default.copies),
        streams: args.max_streams.flatten().unwrap_or(default.streams),
        stream_rate: args.stream_rate.flatten(),
    };
    let volume_metrics = args.volume_metrics.flatten().unwrap_or(VOLUME_METRICS);
    Ok(OperationConfig { metrics_listen, health_listen, volume_metrics, limits, registration })
}

fn wrong(field: &str, problem: impl std::fmt::Display) -> ConfigError {
    ConfigError::of::<OperationArgs>(field, problem)
}

/// The flags that it reads have no meaning without `--register`, so that nothing is said of them then.
fn introduction(args: &OperationArgs, endpoint: &Endpoint, driver_name: &str) -> Result<Introduction> {
    let Endpoint::Unix(served) = endpoint else {
        let problem = format!("kubelet does not reach {endpoint}; serve on a Unix socket");
        return Err(wrong("register", problem));
    };
    let given = args.kubelet_endpoint.as_deref().filter(|text| !text.is_empty());
    let endpoint = match given.map(str::parse::<Endpoint>).transpose() {
        Ok(None) => served.display().to_string(),
        Ok(Some(Endpoint::Unix(path))) => path.display().to_string(),
        Ok(Some(other @ Endpoint::Tcp(_))) => {
            let problem = format!("kubelet does not reach {other}; use a path");
            return Err(wrong("kubelet_endpoint", problem));
        }
        Err(error) => return Err(wrong("kubelet_endpoint", error)),
    };
    let directory = absolute(&args.registration_dir).map_err(|why| wrong("registration_dir", why))?;
    let introduction = Introduction { directory, driver_name: driver_name.to_owned(), endpoint };
    let socket = introduction.socket();
    if socket.to_str().is_none_or(|path| path.parse::<Endpoint>().is_err()) {
        let socket = socket.display();
        let problem = format!("{socket} is too long: the path of a Unix socket has at most 107 bytes");
        return Err(wrong("registration_dir", problem));
    }
    Ok(introduction)
}
