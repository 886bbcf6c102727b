//! Looks, while requests come, whether the 99th percentile of a service on this host is more than its
//! past, and writes a finding when that begins and when it is over.
//!
//! What is more is [`explain::tail::grown`]'s; `past` reads what the store has of the past, once;
//! `slowest` asks what the slowest wait for; `finding` makes the row. Each look reads the seconds
//! since the one before. Without requests there are no looks.

pub(crate) mod finding;
mod past;
mod slowest;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use explain::tail::Slowest;
use explain::tail::grown::{Change, History, LEAST_REQUESTS, MOST_LOOKS, PAST_NS, Window};
use model::cells::quoted;
use query::access::Caller;
use record::{printable, unix_now_ns};
use store::Source;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::asking::Asking;
use super::standing::News;
use finding::Changed;
use past::Past;
pub(crate) use slowest::Slow;

/// Time between two looks.
pub const EVERY: Duration = Duration::from_secs(60);
/// Services that are looked at, those with the most requests.
const MOST_SERVICES: usize = 64;
/// Time for a look's questions, and for those about the past and about the slowest.
const LOOK: Duration = Duration::from_secs(5);
const MORE: Duration = Duration::from_secs(10);
const SECOND_NS: i64 = 1_000_000_000;
/// Sums of a second are in the store so long after it.
const SETTLED_NS: i64 = 5 * SECOND_NS;

/// A service, and what it has had since its last window.
#[derive(Debug, Default)]
struct Service {
    history: History,
    since_ns: i64,
    requests: i64,
    looks: u32,
    /// Of the last look.
    p99_ns: Option<i64>,
}

impl Service {
    /// Counts the requests of a look.
    fn add(&mut self, since_ns: i64, requests: i64, p99_ns: Option<i64>) {
        if self.looks == 0 {
            self.since_ns = since_ns;
        }
        self.looks += 1;
        self.requests += requests;
        self.p99_ns = p99_ns;
    }

    /// Whether they are enough for a window now; too few in too long are none.
    fn is_full(&mut self) -> bool {
        if self.requests >= LEAST_REQUESTS {
            return true;
        }
        if self.looks >= MOST_LOOKS {
            self.begin();
        }
        false
    }

    fn begin(&mut self) {
        (self.looks, self.requests) = (0, 0);
    }
}

/// The looks.
struct Looks {
    shared: Arc<Shared>,
    node: String,
    every: Duration,
    caller: Caller,
    services: BTreeMap<String, Service>,
    /// The end of the last look.
    until_ns: Option<i64>,
    news: mpsc::Sender<News>,
    stop: CancellationToken,
}

/// Looks until `stop`, as often as `every`; changes go to the findings and to `news`.
pub(super) async fn watch(shared: Arc<Shared>, every: Duration, news: mpsc::Sender<News>, stop: CancellationToken) {
    let Source::Store(_) = shared.source.as_ref() else { return };
    let served = Arc::clone(shared.recording.requests_served());
    let node = shared.identity.node().to_string();
    let (services, until_ns) = (BTreeMap::new(), None);
    let mut looks =
        Looks { shared, node, every, caller: Caller::agent(), services, until_ns, news, stop: stop.clone() };
    loop {
        tokio::select! {
            () = served.arrived() => {}
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = looks.look_while_requests_come() => {}
            () = stop.cancelled() => return,
        }
    }
}

impl Looks {
    fn asking(&self, patience: Duration) -> Asking<'_> {
        Asking {
            coordinator: &self.shared.coordinator,
            caller: &self.caller,
            deadline: Instant::now() + patience,
            cancelled: &self.stop,
        }
    }

    async fn look_while_requests_come(&mut self) {
        let mut without = 0;
        while without < MOST_LOOKS || self.services.values().any(|service| service.history.grown().is_some()) {
            tokio::time::sleep(self.every).await;
            match self.look().await {
                Ok(0) => without += 1,
                Ok(_) => without = 0,
                // (A host under load answers later; what it did not answer for is in the next look.)
                Err(why) => tracing::debug!("p99 of services was not looked at: {why}"),
            }
        }
    }

    /// Looks at what was asked since the last look, as far as it is answered: requests are summed up
    /// when they end. Returns how many there were.
    async fn look(&mut self) -> Result<i64, String> {
        let every_ns = i64::try_from(self.every.as_nanos()).unwrap_or(PAST_NS);
        let until_ns = (unix_now_ns() - SETTLED_NS.max(every_ns / 2)).div_euclid(SECOND_NS) * SECOND_NS;
        let since_ns = match self.until_ns {
            Some(last_ns) => last_ns.max(until_ns.saturating_sub(i64::from(MOST_LOOKS) * every_ns)),
            None => {
                let since_ns = until_ns.saturating_sub(every_ns);
                let services = past::of_services(self.asking(MORE), &self.node, since_ns, self.every).await;
                for (name, Past { history, grown }) in services.into_iter().take(MOST_SERVICES) {
                    self.shared.recording.requests_served().set_grown(&name, grown);
                    self.services.insert(name, Service { history, ..Service::default() });
                }
                since_ns
            }
        };
        if since_ns >= until_ns {
            return Ok(0);
        }
        let (rows, _) = self.asking(LOOK).rows(past::sql(since_ns, until_ns, ""), &self.own()).await?;
        self.until_ns = Some(until_ns);
        let mut found: BTreeMap<String, (i64, Option<i64>)> = BTreeMap::new();
        for (service, requests, p99_ns) in rows.iter().map(|row| past::read(row)) {
            found.insert(service, (requests, p99_ns));
        }
        let all = found.values().map(|(requests, _)| requests).sum();
        self.make_room(&found, until_ns);
        for (name, service) in &mut self.services {
            let (requests, p99_ns) = found.get(name).copied().unwrap_or_default();
            if requests > 0 || service.looks > 0 {
                service.add(since_ns, requests, p99_ns);
            }
        }
        for (name, window) in self.windows(until_ns).await? {
            self.judge(&name, window).await;
        }
        self.forget_silent(until_ns).await;
        Ok(all)
    }

    fn own(&self) -> [String; 1] {
        [self.node.clone()]
    }

    /// Adds services that are new, where there is room; those without requests for a day make some.
    fn make_room(&mut self, found: &BTreeMap<String, (i64, Option<i64>)>, now_ns: i64) {
        let is_new = |name: &&String| !self.services.contains_key(*name);
        let new: Vec<String> = found.keys().filter(is_new).cloned().collect();
        if self.services.len() + new.len() > MOST_SERVICES {
            self.services.retain(|_, of| of.looks > 0 || now_ns.saturating_sub(of.history.last_ns()) < PAST_NS);
        }
        for name in new {
            if self.services.len() >= MOST_SERVICES {
                tracing::debug!("p99 of {} is not followed: {MOST_SERVICES} services are", printable(&name));
                return;
            }
            self.services.insert(name, Service::default());
        }
    }

    /// The windows that are full.
    async fn windows(&mut self, until_ns: i64) -> Result<Vec<(String, Window)>, String> {
        let mut full: BTreeMap<String, Window> = BTreeMap::new();
        let mut longer = vec![];
        for (name, service) in &mut self.services {
            if !service.is_full() {
                continue;
            }
            let Service { since_ns, requests, looks, p99_ns, .. } = *service;
            service.begin();
            let window = Window { since_ns, until_ns, requests, p99_ns: p99_ns.unwrap_or(0) };
            // Percentiles of several looks are no percentile of all.
            if looks > 1 {
                longer.push(format!("(service = {} AND bucket_ns >= {since_ns})", quoted(name)));
            }
            if looks > 1 || p99_ns.is_some() {
                full.insert(name.clone(), window);
            }
        }
        if !longer.is_empty() {
            let first_ns = full.values().map(|window| window.since_ns).min().unwrap_or(until_ns);
            let sql = past::sql(first_ns, until_ns, &format!(" AND ({})", longer.join(" OR ")));
            let (rows, _) = self.asking(LOOK).rows(sql, &self.own()).await?;
            for row in &rows {
                let (service, requests, p99_ns) = past::read(row);
                if let Some((window, p99_ns)) = full.get_mut(&service).zip(p99_ns) {
                    (window.requests, window.p99_ns) = (requests, p99_ns);
                }
            }
        }
        Ok(full.into_iter().filter(|(_, window)| window.p99_ns > 0).collect())
    }

    async fn judge(&mut self, name: &str, window: Window) {
        let Some(change) = self.services.get_mut(name).and_then(|service| service.history.judge(window)) else {
            return;
        };
        self.publish(name, change, Some(window)).await;
    }

    /// What has grown and has too few requests for long is known no more.
    async fn forget_silent(&mut self, now_ns: i64) {
        let silent = |(name, service): (&String, &mut Service)| Some((name.clone(), service.history.silent(now_ns)?));
        let changes: Vec<(String, Change)> = self.services.iter_mut().filter_map(silent).collect();
        for (name, change) in changes {
            self.publish(&name, change, None).await;
        }
    }

    /// Writes a change into the log, the findings and what stands, and hands it on.
    async fn publish(&self, service: &str, change: Change, window: Option<Window>) {
        let slowest = match (change, window) {
            (Change::Grown(grown), Some(window)) => {
                let slow = Slow {
                    node: self.node.clone(),
                    service: service.to_owned(),
                    since_ns: grown.since_ns,
                    until_ns: window.until_ns,
                    p99_ns: window.p99_ns,
                    with_names: false,
                };
                slow.slowest(self.asking(MORE)).await
            }
            _ => Ok(Slowest::default()),
        };
        let changed = Changed { node: &self.node, service, change, window, slowest };
        let (row, text) = (changed.row(), changed.text());
        match change {
            Change::Grown(_) => tracing::warn!("{} (rankmesh explain {})", printable(&text), row.ts_ns),
            _ => tracing::info!("{}", printable(&text)),
        }
        self.shared.recording.requests_served().set_grown(service, changed.now());
        if let Source::Store(store) = self.shared.source.as_ref() {
            store.ingest().finding(row.clone());
        }
        if let Err(mpsc::error::TrySendError::Full(_)) = self.news.try_send(News::Tail { finding: Box::new(row), text })
        {
            tracing::warn!("the finding on p99 of {} was not handed over, too many wait", printable(service));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_as_long_as_it_takes_to_have_enough_requests() {
        let mut busy = Service::default();
        busy.add(0, LEAST_REQUESTS, Some(7));
        assert!(busy.is_full());
        let mut quiet = Service::default();
        quiet.add(60, LEAST_REQUESTS - 1, Some(7));
        assert!(!quiet.is_full());
        quiet.add(120, 1, Some(9));
        assert!(quiet.is_full());
        assert_eq!((quiet.since_ns, quiet.requests, quiet.looks), (60, LEAST_REQUESTS, 2));
        let mut idle = Service::default();
        for look in 0..MOST_LOOKS {
            idle.add(i64::from(look), 1, Some(7));
            assert!(!idle.is_full());
        }
        assert_eq!((idle.looks, idle.requests), (0, 0), "it begins anew");
    }
}
