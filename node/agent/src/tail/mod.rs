//! Looks, while requests come, whether the 99th percentile of a service on this host is more than its
//! past, and writes a finding when that begins and when it is over.
//!
//! What is more is [`explain::tail::grown`]'s; [`Served`] has the requests that ended since the last
//! look; `past` reads what the store has of the past, and what stood when the agent ended; `slowest`
//! asks what the slowest wait for; `finding` makes the row. Without requests there are no looks, but
//! while something stands.

pub(crate) mod finding;
mod past;
mod slowest;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use explain::tail::Slowest;
use explain::tail::grown::{Change, History, LEAST_REQUESTS, PAST_NS, Window};
use model::Failure;
use query::access::Caller;
use record::{printable, steady_now_ns, wall_ahead_ns};
use store::Source;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::asking::Asking;
use super::served::{Ended, Served};
use super::standing::TailNews;
use finding::Changed;
pub(crate) use slowest::Slow;

/// Time between two looks.
pub const EVERY: Duration = Duration::from_secs(60);
/// A window is as many looks long as it takes to have enough requests, at most so many; a service with
/// fewer requests is not judged.
const MOST_LOOKS: u32 = 10;
/// Services that are looked at, those that had requests last.
const MOST_SERVICES: usize = 64;
/// Time for the questions about the past, and about the slowest.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is tried to read the past before that is begun anew.
const TRIES: u32 = 5;

/// A service, and what has ended since its last window.
#[derive(Debug, Default)]
struct Service {
    history: History,
    window: Window,
    looks: u32,
    /// When requests of it ended last.
    seen_ns: i64,
    /// What explains that it is grown, in words.
    cause: Option<String>,
}

impl Service {
    /// Counts the requests of a look; the window, where they are enough for one now. Too few in too long
    /// are none.
    fn add(&mut self, since_ns: i64, until_ns: i64, ended: &Ended) -> Option<Window> {
        if self.looks == 0 {
            self.window.since_ns = since_ns;
        }
        self.looks += 1;
        if ended.requests > 0 {
            self.seen_ns = until_ns;
        }
        self.window.until_ns = until_ns;
        self.window.durations.merge(&ended.durations);
        self.window.requests += ended.requests;
        self.window.failed += ended.failed;
        let is_full = self.window.durations.count() >= LEAST_REQUESTS;
        let window = (is_full || self.looks >= MOST_LOOKS).then(|| std::mem::take(&mut self.window))?;
        self.looks = 0;
        is_full.then_some(window)
    }
}

/// The looks.
struct Looks {
    shared: Arc<Shared>,
    served: Arc<Served>,
    node: String,
    every: Duration,
    caller: Caller,
    services: BTreeMap<String, Service>,
    /// How often the past is tried to be read yet.
    tries: u32,
    /// The end of the last look, on the steady clock.
    until_ns: i64,
    news: mpsc::Sender<TailNews>,
    stop: CancellationToken,
}

/// Looks until `stop`, as often as `every`; changes go to the findings and to `news`.
pub(super) async fn watch(shared: Arc<Shared>, every: Duration, news: mpsc::Sender<TailNews>, stop: CancellationToken) {
    let served = Arc::clone(shared.recording.requests_served());
    let Source::Store(_) = shared.source.as_ref() else {
        served.grown_is_known();
        return;
    };
    let mut looks = Looks {
        served,
        node: shared.identity.node().to_string(),
        shared,
        every,
        caller: Caller::agent(),
        services: BTreeMap::new(),
        tries: TRIES,
        until_ns: steady_now_ns(),
        news,
        stop: stop.clone(),
    };
    tokio::select! {
        () = looks.look_for_ever() => {}
        () = stop.cancelled() => {}
    }
}

impl Looks {
    fn asking(&self) -> Asking<'_> {
        Asking {
            coordinator: &self.shared.coordinator,
            caller: &self.caller,
            deadline: Instant::now() + PATIENCE,
            cancelled: &self.stop,
        }
    }

    async fn look_for_ever(&mut self) {
        // What stood is known before anything is found: else that would be found again, or never be over.
        while let Err(why) = self.take_up().await {
            tracing::warn!("p99 of services is not looked at: what had grown before is not known yet: {why}");
            tokio::time::sleep(self.every).await;
        }
        loop {
            if !self.stands() {
                self.served.arrived().await;
                self.until_ns = steady_now_ns();
            }
            let mut without = 0;
            while without < MOST_LOOKS || self.stands() {
                tokio::time::sleep(self.every).await;
                without = if self.look().await { 0 } else { without + 1 };
            }
        }
    }

    /// Whether anything stands as grown.
    fn stands(&self) -> bool {
        self.services.values().any(|service| service.history.grown().is_some())
    }

    /// Takes up what stood when the agent ended.
    async fn take_up(&mut self) -> Result<(), Failure> {
        let now_ns = steady_now_ns();
        let stood = past::stood(self.asking(), &self.node).await?;
        for (name, stood) in stood {
            let mut service = Service { cause: stood.cause, ..Service::default() };
            service.history.stands(stood.grown, stood.p99_ns, now_ns);
            self.show(&name, &service, stood.p99_ns);
            self.services.insert(name, service);
        }
        self.served.grown_is_known();
        Ok(())
    }

    /// Looks at what has ended since the last look; whether that is any.
    async fn look(&mut self) -> bool {
        if self.tries > 0 && self.read_past().await.is_err() {
            // What ends meanwhile is in the next look.
            return true;
        }
        let (since_ns, until_ns) = (self.until_ns, steady_now_ns());
        self.until_ns = until_ns;
        let ended = self.served.take_ended();
        let any = !ended.is_empty();
        for name in ended.keys().filter(|name| !self.services.contains_key(&***name)).cloned().collect::<Vec<_>>() {
            self.services.insert(name.to_string(), Service::default());
        }
        let mut windows = vec![];
        for (name, service) in &mut self.services {
            let of_it = ended.get(name.as_str());
            if of_it.is_some() || service.looks > 0 {
                let window = service.add(since_ns, until_ns, of_it.unwrap_or(&Ended::default()));
                windows.extend(window.map(|window| (name.clone(), window)));
            }
        }
        for (name, window) in windows {
            self.judge(&name, window).await;
        }
        self.forget_silent(until_ns).await;
        self.forget_old(until_ns);
        any
    }

    /// Reads the past where there is none yet: all that is answered in time, or, where that is nothing,
    /// again at the next look, some times.
    async fn read_past(&mut self) -> Result<(), ()> {
        match past::windows(self.asking(), &self.node, self.until_ns, self.every * MOST_LOOKS).await {
            Ok(windows) => {
                self.tries = 0;
                for (name, windows) in windows {
                    let service = self.services.entry(name).or_default();
                    service.seen_ns = service.seen_ns.max(windows.first().map_or(0, |newest| newest.until_ns));
                    service.history.add_stored(windows);
                }
                Ok(())
            }
            Err(why) => {
                self.tries -= 1;
                tracing::warn!("the past of services was not read, {} more tries: {why}", self.tries);
                Err(())
            }
        }
    }

    async fn judge(&mut self, name: &str, window: Window) {
        let Some(service) = self.services.get_mut(name) else { return };
        match service.history.judge(window.clone()) {
            Some(change) => self.publish(name, change, Some(&window)).await,
            None if service.history.grown().is_some() => self.show(name, &self.services[name], window.p99_ns()),
            None => {}
        }
    }

    /// What has grown and has too few requests for long is known no more.
    async fn forget_silent(&mut self, now_ns: i64) {
        let silent = |(name, service): (&String, &mut Service)| Some((name.clone(), service.history.silent(now_ns)?));
        let changes: Vec<(String, Change)> = self.services.iter_mut().filter_map(silent).collect();
        for (name, change) in changes {
            self.publish(&name, change, None).await;
        }
    }

    /// Lets go of services without requests for a day, and of more than have room: those that had none
    /// for longest. What is grown stays.
    fn forget_old(&mut self, now_ns: i64) {
        let can_go = |service: &Service| service.history.grown().is_none();
        self.services.retain(|_, of| !can_go(of) || now_ns.saturating_sub(of.seen_ns) < PAST_NS);
        while self.services.len() > MOST_SERVICES {
            let can_go = self.services.iter().filter(|(_, service)| can_go(service));
            let Some((name, _)) = can_go.min_by_key(|(_, service)| service.seen_ns) else { return };
            let name = name.clone();
            tracing::debug!("p99 of {} is not followed: {MOST_SERVICES} services are", printable(&name));
            self.services.remove(&name);
        }
    }

    /// Has what stands on a service shown with the 99th percentile of its last window.
    fn show(&self, name: &str, service: &Service, p99_ns: i64) {
        let now = service.history.grown().map(|grown| {
            finding::now(&self.node, name, grown.after_ns(wall_ahead_ns()), p99_ns, service.cause.as_deref())
        });
        self.served.set_grown(name, now);
    }

    /// Writes a change into the log, the findings and what stands, and hands it on.
    async fn publish(&mut self, name: &str, change: Change, window: Option<&Window>) {
        let ahead_ns = wall_ahead_ns();
        let slowest = match (change, window) {
            (Change::Grown(grown), Some(window)) => {
                let slow = Slow {
                    node: self.node.clone(),
                    service: name.to_owned(),
                    since_ns: grown.since_ns.saturating_add(ahead_ns),
                    until_ns: window.until_ns.saturating_add(ahead_ns),
                    p99_ns: window.p99_ns(),
                    with_names: false,
                };
                slow.slowest(self.asking()).await
            }
            _ => Ok(Slowest::default()),
        };
        let changed = Changed { node: &self.node, service: name, change, window, ahead_ns, slowest };
        let (row, text) = (changed.row(), printable(&changed.text()));
        match change {
            Change::Grown(_) => tracing::warn!("{text} (rankmesh explain {})", row.ts_ns),
            _ => tracing::info!("{text}"),
        }
        if let Source::Store(store) = self.shared.source.as_ref() {
            store.ingest().finding(row.clone());
        }
        let cause = changed.named();
        if let Some(service) = self.services.get_mut(name) {
            service.cause = cause;
            self.show(name, &self.services[name], window.map_or(0, Window::p99_ns));
        }
        if let Err(mpsc::error::TrySendError::Full(_)) = self.news.try_send(TailNews { finding: row, text }) {
            tracing::warn!("--on-finding: not run for p99 of {}, too many wait", printable(name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_as_long_as_it_takes_to_have_enough_requests() {
        let ended = |answered: u64, failed: u64| {
            let mut ended = Ended { requests: answered + failed, failed, ..Ended::default() };
            ended.durations.add(7, answered);
            ended
        };
        let mut busy = Service::default();
        assert!(busy.add(0, 60, &ended(LEAST_REQUESTS, 0)).is_some());
        let mut quiet = Service::default();
        // (What is not answered has no duration.)
        assert_eq!(quiet.add(60, 120, &ended(LEAST_REQUESTS - 1, 9)), None);
        let window = quiet.add(120, 180, &ended(1, 0)).expect("a window");
        assert_eq!((window.since_ns, window.until_ns, window.requests), (60, 180, LEAST_REQUESTS + 9));
        assert_eq!((window.failed, window.p99_ns(), quiet.looks), (9, 7, 0));
        let mut idle = Service::default();
        for look in 0..i64::from(MOST_LOOKS) {
            assert_eq!(idle.add(look, look + 1, &ended(1, 0)), None);
        }
        assert_eq!((idle.looks, idle.window), (0, Window::default()), "it begins anew");
    }
}
