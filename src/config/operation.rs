//! The flags for operating the process: metrics, probes, and registration with kubelet.

use std::net::SocketAddr;

use super::fields::{absolute, truth};
use super::{ConfigError, Flag, OperationConfig, Role};
use crate::cli::OperationArgs;
use crate::model::{Limits, parse_quantity};
use crate::register::Introduction;
use crate::server::Endpoint;

type Result<T> = std::result::Result<T, ConfigError>;

const METRICS_LISTEN: Flag = Flag("--metrics-listen", "HOSTLOOP_METRICS_LISTEN");
const HEALTH_LISTEN: Flag = Flag("--health-listen", "HOSTLOOP_HEALTH_LISTEN");
const MAX_COPIES: Flag = Flag("--max-copies", "HOSTLOOP_MAX_COPIES");
const MAX_STREAMS: Flag = Flag("--max-streams", "HOSTLOOP_MAX_STREAMS");
const STREAM_RATE: Flag = Flag("--stream-rate", "HOSTLOOP_STREAM_RATE");
const REGISTER: Flag = Flag("--register", "HOSTLOOP_REGISTER");
const REGISTRATION_DIR: Flag = Flag("--registration-dir", "HOSTLOOP_REGISTRATION_DIR");
const KUBELET_ENDPOINT: Flag = Flag("--kubelet-endpoint", "HOSTLOOP_KUBELET_ENDPOINT");

pub(super) fn operation(args: &OperationArgs, endpoint: &Endpoint, role: &Role) -> Result<OperationConfig> {
    let registration = match (truth(REGISTER, &args.register)?, role.settings()) {
        (true, Some(settings)) => Some(introduction(args, endpoint, &settings.driver_name)?),
        (true, None) => {
            let role = role.as_str();
            return Err(REGISTER.wrong(format_args!(
                "it works with --role all and node only, not with {role}; leave it out"
            )));
        }
        (false, _) => None,
    };
    let metrics_listen = listen(METRICS_LISTEN, args.metrics_listen.as_deref())?;
    let health_listen = listen(HEALTH_LISTEN, args.health_listen.as_deref())?;
    if health_listen.is_some_and(|address| address.port() != 0 && metrics_listen == Some(address)) {
        return Err(HEALTH_LISTEN.wrong("it is the address of --metrics-listen; use another port"));
    }
    let limits = limits(args, role)?;
    Ok(OperationConfig { metrics_listen, health_listen, limits, registration })
}

fn limits(args: &OperationArgs, role: &Role) -> Result<Limits> {
    let given = [
        (MAX_COPIES, args.max_copies.is_some()),
        (MAX_STREAMS, args.max_streams.is_some()),
        (STREAM_RATE, args.stream_rate.is_some()),
    ];
    if let (None, Some((flag, _))) = (role.settings(), given.into_iter().find(|(_, given)| *given)) {
        let role = role.as_str();
        return Err(
            flag.wrong(format_args!("it works with --role all and node only, not with {role}; leave it out"))
        );
    }
    let default = Limits::default();
    let stream_rate = match args.stream_rate.as_deref() {
        None | Some("" | "0") => None,
        Some(text) => Some(parse_quantity(text).map_err(|e| STREAM_RATE.wrong(e))?),
    };
    Ok(Limits {
        copies: at_a_time(MAX_COPIES, args.max_copies.as_deref(), default.copies)?,
        streams: at_a_time(MAX_STREAMS, args.max_streams.as_deref(), default.streams)?,
        stream_rate,
    })
}

fn at_a_time(flag: Flag, text: Option<&str>, default: usize) -> Result<usize> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(default) };
    let most = Limits::MOST;
    text.parse().ok().filter(|count| (1..=most).contains(count)).ok_or_else(|| {
        flag.wrong(format_args!("{text:?} is not a number from 1 to {most}; each has its own thread"))
    })
}

fn listen(flag: Flag, text: Option<&str>) -> Result<Option<SocketAddr>> {
    // An empty variable is how a manifest leaves it out.
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let address = text.parse().map_err(|_| {
        flag.wrong(format_args!("{text:?} is not an address; use IP:PORT such as 0.0.0.0:9808 or [::]:9808"))
    });
    address.map(Some)
}

fn introduction(args: &OperationArgs, endpoint: &Endpoint, driver_name: &str) -> Result<Introduction> {
    let Endpoint::Unix(served) = endpoint else {
        return Err(REGISTER.wrong(format_args!("kubelet does not reach {endpoint}; serve on a Unix socket")));
    };
    let given = args.kubelet_endpoint.as_deref().filter(|text| !text.is_empty());
    let endpoint = match given.map(str::parse::<Endpoint>).transpose() {
        Ok(None) => served.display().to_string(),
        Ok(Some(Endpoint::Unix(path))) => path.display().to_string(),
        Ok(Some(other @ Endpoint::Tcp(_))) => {
            return Err(KUBELET_ENDPOINT.wrong(format_args!("kubelet does not reach {other}; use a path")));
        }
        Err(error) => return Err(KUBELET_ENDPOINT.wrong(error)),
    };
    let directory = absolute(&args.registration_dir).map_err(|why| REGISTRATION_DIR.wrong(why))?;
    let introduction = Introduction { directory, driver_name: driver_name.to_owned(), endpoint };
    let socket = introduction.socket();
    socket.to_str().is_some_and(|path| path.parse::<Endpoint>().is_ok()).then_some(introduction).ok_or_else(
        || {
            let socket = socket.display();
            REGISTRATION_DIR
                .wrong(format_args!("{socket} is too long: the path of a Unix socket has at most 107 bytes"))
        },
    )
}
