//! A run: the daemon comes, is measured, and goes.

use crate::bounds::Table;
use crate::container::Containers;
use crate::daemon::Daemon;
use crate::figure::Figure;
use crate::machine::Machine;
use crate::report::{FORMAT, Report};
use crate::session::{SIDE_BY_SIDE, Session, limited};
use crate::verdict::{Outcome, Verdict, fails, number};
use crate::{BenchError, Experiment, Options, bounds};
use futures::StreamExt as _;
use pando_client::api::BakeRequest;
use std::time::{Duration, Instant};

/// What sandboxes are made from.
const TEMPLATE: &str = "base";

/// Making the template may mean to download and install a system.
const TEMPLATE_LIMIT: Duration = Duration::from_secs(1200);

/// Removing what is left must not hold up whoever pressed Ctrl-C for long.
const CLEAN_LIMIT: Duration = Duration::from_secs(30);

/// Measures. `tell` gets lines for whoever waits; `stop` ends it early with a signal's
/// number. Sandboxes, containers, daemon and directory are gone when this returns.
///
/// # Errors
///
/// [`BenchError`] says what kept it from its end.
pub async fn run(
    options: &Options,
    tell: &dyn Fn(&str),
    stop: impl Future<Output = u32>,
) -> Result<Report, BenchError> {
    let mut stop = std::pin::pin!(stop);
    let interrupted = |signal| BenchError::Interrupted { signal };
    let machine = Machine::look();
    let daemon = tokio::select! {
        daemon = Daemon::start(&options.daemon) => daemon?,
        signal = &mut stop => return Err(interrupted(signal)),
    };
    let mut containers = Containers::none();
    let result = tokio::select! {
        result = measure(options, tell, machine, &daemon, &mut containers) => result,
        signal = &mut stop => Err(interrupted(signal)),
    };
    if let Err(error) = &result
        && !matches!(error, BenchError::Interrupted { .. })
    {
        tell(&format!("the end of the daemon's log:{}", daemon.log()));
    }
    tell("cleaning up");
    let _ = tokio::time::timeout(CLEAN_LIMIT, clean(&daemon, &containers)).await;
    daemon.end().await;
    result
}

async fn measure(
    options: &Options,
    tell: &dyn Fn(&str),
    machine: Machine,
    daemon: &Daemon,
    containers: &mut Containers,
) -> Result<Report, BenchError> {
    let began = Instant::now();
    let table = bounds::built_in()?;
    let started_at = jiff::Timestamp::now().to_string();
    tell(&format!(
        "making the template `{TEMPLATE}`, if it is not made yet"
    ));
    make_template(daemon).await?;
    if options
        .experiments
        .iter()
        .any(|what| what.needs_containers())
    {
        tell("looking for container runtimes");
        containers.find(&daemon.scratch("containers")).await;
    }
    let session = Session::new(daemon, containers, options.counts);
    session.await_pool().await?;
    let (mut figures, mut first_attempts) = (Vec::new(), Vec::new());
    for experiment in &options.experiments {
        tell(&format!("{} …", experiment.word()));
        let mut measured = measure_one(*experiment, &session, tell).await?;
        let missed =
            fails(&verdicts(&table, &measured)).any(|verdict| verdict.outcome == Outcome::Missed);
        if missed && options.repeat_missed {
            tell(&format!(
                "{} missed a bound: once more …",
                experiment.word()
            ));
            first_attempts.append(&mut measured);
            measured = measure_one(*experiment, &session, tell).await?;
        }
        figures.extend(measured);
    }
    let verdicts = verdicts(&table, &figures);
    let mut definitions = table.definitions;
    definitions.retain(|known| figures.iter().any(|figure| figure.name == known.figure));
    Ok(Report {
        format: FORMAT,
        started_at,
        duration_s: began.elapsed().as_secs_f64(),
        machine,
        pando: session.status().await?.into(),
        figures,
        definitions,
        verdicts,
        first_attempts,
    })
}

async fn measure_one(
    experiment: Experiment,
    session: &Session<'_>,
    tell: &dyn Fn(&str),
) -> Result<Vec<Figure>, BenchError> {
    let figures = experiment.measure(session).await?;
    figures.iter().for_each(|figure| tell(&line(figure)));
    Ok(figures)
}

/// On every bound of these figures.
fn verdicts(table: &Table, figures: &[Figure]) -> Vec<Verdict> {
    let figure = |name: &str| figures.iter().find(|figure| figure.name == name);
    let bounds = table.bounds.iter();
    bounds
        .filter_map(|bound| Some(Verdict::on(bound, figure(&bound.figure)?)))
        .collect()
}

async fn make_template(daemon: &Daemon) -> Result<(), BenchError> {
    let request = BakeRequest::default();
    let baking = daemon.client.bake_template(TEMPLATE, &request);
    let what = "making the template";
    match tokio::time::timeout(TEMPLATE_LIMIT, baking).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(source)) => Err(BenchError::Request { what, source }),
        Err(_) => Err(BenchError::TooSlow {
            what,
            limit: TEMPLATE_LIMIT,
        }),
    }
}

/// Containers and sandboxes that an experiment which failed left.
async fn clean(daemon: &Daemon, containers: &Containers) {
    containers.clean().await;
    let Ok(left) = limited("listing sandboxes", daemon.client.list()).await else {
        return;
    };
    let removing = left.iter().map(|sandbox| daemon.client.remove(&sandbox.id));
    let removing = futures::stream::iter(removing).buffer_unordered(SIDE_BY_SIDE);
    removing.for_each(async |_| {}).await;
}

/// A figure for whoever waits.
fn line(figure: &Figure) -> String {
    match figure.measured.summary() {
        Some(summary) => format!(
            "  {:<22} p50 {} {}, n {}",
            figure.name,
            number(summary.p50),
            figure.unit.word(),
            summary.n
        ),
        None => format!("  {:<22} not measured", figure.name),
    }
}
