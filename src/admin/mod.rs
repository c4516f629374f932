//! What administrators do with the volumes of a cluster. `hostloop volumes`, `volume`, `snapshots` and `nodes` show what there is
//! (`inspect/`), `hostloop doctor` what is amiss (`doctor/`). `hostloop move`, `evacuate`, `status` and `promote` create and
//! delete VolumeMoves, and follow what the controller (`cluster/moves/`) writes into them and into VolumeReplicas. They keep
//! nothing: each command can be ended and started again.

mod adopt;
mod api;
mod ask;
mod bundle;
mod doctor;
mod evacuate;
mod follow;
mod in_pool;
mod inspect;
mod promote;
mod screen;
mod seen;
mod show;
#[cfg(test)]
mod tests;
mod wait;

use std::pin::Pin;

use self::api::{Cluster, Failure};
use self::ask::Wish;
use self::follow::Follow;
use self::screen::Screen;
use self::seen::Name;
use self::wait::{Until, Waited};
use crate::cli::{AdminCommand, AdoptArgs, BundleArgs, ClusterArgs, DoctorArgs, InspectCommand, MoveArgs};
use crate::cluster::moves::resources::{Target, VolumeMoveSpec, When};
use crate::shutdown::Shutdown;

/// The node that leaves the choice to the controller.
const ANY: &str = "any";

/// How a command ended: its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done = 0,
    /// Refused, given up, failed or interrupted.
    Failed = 1,
    /// The user has not said that the loss is wanted.
    Unconfirmed = 2,
}

impl Outcome {
    fn of(good: bool) -> Self {
        if good { Outcome::Done } else { Outcome::Failed }
    }
}

/// Runs a command. `program` is how its users call it. The future is boxed so that its code is in this crate once.
pub fn run(
    command: AdminCommand,
    program: &'static str,
    shutdown: Shutdown,
) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
    Box::pin(async move {
        let args = args_of(&command);
        let mut screen = Screen::new(args.json);
        match Cluster::connect(args).await {
            Ok(cluster) => Session { cluster, screen, program }.run(&command, shutdown).await,
            Err(error) => {
                screen.problem(&error);
                Outcome::Failed
            }
        }
    })
}

/// Runs `hostloop adopt`. The future is boxed as that of [`run`] is.
pub fn adopt(args: AdoptArgs, shutdown: Shutdown) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
    Box::pin(adopt::run(args, shutdown))
}

/// Runs a command that shows what is in the cluster. The future is boxed as that of [`run`] is.
pub fn inspect(command: InspectCommand, shutdown: Shutdown) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
    Box::pin(inspect::run(command, shutdown))
}

/// Looks for what is amiss in the cluster, and has it put right. The future is boxed as that of [`run`] is.
pub fn doctor(args: DoctorArgs, shutdown: Shutdown) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
    Box::pin(doctor::run(args, shutdown))
}

/// Collects what is needed to look into a problem. The future is boxed as that of [`run`] is.
pub fn support_bundle(args: BundleArgs, shutdown: Shutdown) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
    Box::pin(bundle::run(args, shutdown))
}

fn args_of(command: &AdminCommand) -> &ClusterArgs {
    match command {
        AdminCommand::Move(args) => &args.cluster,
        AdminCommand::Evacuate(args) => &args.cluster,
        AdminCommand::Status(args) => &args.cluster,
        AdminCommand::Promote(args) => &args.cluster,
    }
}

/// One run of a command.
struct Session {
    cluster: Cluster,
    screen: Screen,
    /// How users call the program.
    program: &'static str,
}

impl Session {
    async fn run(mut self, command: &AdminCommand, shutdown: Shutdown) -> Outcome {
        let done = tokio::select! {
            done = self.act(command) => done,
            () = shutdown.requested() => {
                self.screen.keep();
                for line in parting(command, self.program) {
                    self.screen.say(&line);
                }
                return Outcome::Failed;
            }
        };
        done.unwrap_or_else(|error: Failure| {
            self.screen.problem(&error.to_string());
            Outcome::Failed
        })
    }

    async fn act(&mut self, command: &AdminCommand) -> Result<Outcome, Failure> {
        match command {
            AdminCommand::Move(args) => self.move_claims(args).await,
            AdminCommand::Evacuate(args) => self.evacuate(args).await,
            AdminCommand::Status(args) => self.show(args).await,
            AdminCommand::Promote(args) => self.promote(args).await,
        }
    }

    /// The claims of a command, each once.
    fn names(&self, namespace: Option<&str>, claims: &[String]) -> Vec<Name> {
        let namespace = namespace.unwrap_or(&self.cluster.namespace);
        let mut names: Vec<Name> = Vec::new();
        for claim in claims {
            let name = Name { namespace: namespace.to_owned(), name: claim.clone() };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    async fn move_claims(&mut self, args: &MoveArgs) -> Result<Outcome, Failure> {
        let to = args.to.as_deref().unwrap_or(ANY);
        let wish = (!args.cancel).then(|| Wish {
            spec: VolumeMoveSpec {
                claim_name: String::new(),
                target: Target { storage_class: args.class.clone(), ..target(to, args.pool.clone()) },
                when: when(args.now),
                keep_source: args.keep_source,
                evict_bare_pods: args.evict_bare_pods,
            },
            away_from: None,
            in_place: args.to.is_none(),
        });
        let driver = &args.cluster.driver_name;
        let mut follows = Vec::new();
        for name in self.names(args.namespace.as_deref(), &args.claims) {
            follows.push(match &wish {
                Some(wish) => self.ask(name, wish).await?,
                None => self.cancel(name, driver).await?,
            });
        }
        let until = if args.wait { Until::Ended } else { Until::Ready };
        if self.wait(&mut follows, until, driver).await? == Waited::ForNobody {
            self.nobody_moves(&parting(&AdminCommand::Move(args.clone()), self.program));
            return Ok(Outcome::Failed);
        }
        self.tell_ready(&follows);
        Ok(Outcome::of(follows.iter().all(Follow::is_good)))
    }

    /// Says what is left to do for the claims whose copies are ready.
    fn tell_ready(&mut self, follows: &[Follow]) {
        for follow in follows.iter().filter(|follow| !follow.has_ended()) {
            self.screen.say(&format!("{}: ready: {}", follow.name, follow.why()));
        }
    }

    fn nobody_moves(&mut self, parting: &[String]) {
        self.screen.problem(
            "no controller of this driver moves volumes; set move.enabled in the chart (--move of the controllers), and \
             look at --driver-name",
        );
        for line in parting.iter().skip(1) {
            self.screen.say(line);
        }
    }
}

/// Returns where the volumes are to be. `any` leaves the choice to the controller.
fn target(to: &str, pool: Option<String>) -> Target {
    Target { node: (to != ANY).then(|| to.to_owned()), pool, storage_class: None }
}

fn when(now: bool) -> When {
    if now { When::Now } else { When::PodsLeave }
}

/// Returns what to say when a command is interrupted: what goes on, and how to see and to end it.
fn parting(command: &AdminCommand, program: &str) -> Vec<String> {
    let (cancel, namespace, cluster) = match command {
        AdminCommand::Move(args) => {
            (format!("move {}", args.claims.join(" ")), args.namespace.clone(), &args.cluster)
        }
        AdminCommand::Evacuate(args) => {
            let pool = args.pool.as_ref().map_or_else(String::new, |pool| format!(" --pool {pool}"));
            (format!("evacuate {}{pool}", args.node), args.namespace.clone(), &args.cluster)
        }
        AdminCommand::Promote(args) => (String::new(), args.namespace.clone(), &args.cluster),
        AdminCommand::Status(_) => return Vec::new(),
    };
    let mut flags = String::new();
    let kubeconfig = cluster.kubeconfig.as_ref().map(|path| path.display().to_string());
    for (flag, value) in [("-n", &namespace), ("--context", &cluster.context), ("--kubeconfig", &kubeconfig)]
    {
        if let Some(value) = value {
            flags = format!("{flags} {flag} {value}");
        }
    }
    let all = if namespace.is_none() && matches!(command, AdminCommand::Evacuate(_)) { " -A" } else { "" };
    let mut lines = vec![
        "What was asked for goes on in the cluster.".to_owned(),
        format!("  to look at it:    {program} status{all}{flags}"),
        "  to follow it:     the same command again".to_owned(),
    ];
    if !cancel.is_empty() {
        lines.push(format!("  to give it up:    {program} {cancel} --cancel{flags}"));
    }
    lines
}
