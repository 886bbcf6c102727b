//! The alerts that stand, and the messages that each receiver has to get: values in, messages out.
//!
//! A job with a culprit, or one that hangs, is an alert; it is identified by verdict, job, rank
//! and host. So is a service on the agent's host whose 99th percentile has grown. Alertmanager gets
//! each alert again every minute while it stands, as it asks
//! (<https://prometheus.io/docs/alerting/latest/clients/>); a webhook and Slack get it when it
//! begins and when it is over. A message that a receiver did not take is sent again, at growing
//! intervals. `messages` has what each receiver is sent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use model::watch::{GrownNow, JobNow, Watched};
use serde_json::Value;

use super::snapshot::is_judge;

/// Time between two messages about an alert to Alertmanager.
const AGAIN: Duration = Duration::from_secs(60);
/// An alert that was not seen for this long is over.
const OVER_AFTER: Duration = Duration::from_secs(10);
/// Pause after a message that was not taken, at first and at most.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_MOST: Duration = Duration::from_secs(300);
/// Most alerts at a time.
const MOST: usize = 256;

mod messages;

use messages::{alertmanager, slack, webhook};

/// The identity of an alert.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Of a job; empty of a service.
    job: String,
    /// Of a service; empty of a job.
    service: String,
    verdict: String,
    rank: String,
    node: String,
}

/// What an alert is about.
#[derive(Debug, Clone, PartialEq)]
enum About {
    Job(Box<JobNow>),
    Service(String, GrownNow),
}

impl About {
    /// What it is called.
    fn title(&self) -> String {
        match self {
            Self::Job(job) => format!("Job {}", job.name),
            Self::Service(name, _) => format!("Service {name}"),
        }
    }

    fn sentence(&self) -> &str {
        match self {
            Self::Job(job) => &job.sentence,
            Self::Service(_, grown) => &grown.sentence,
        }
    }

    fn cause(&self) -> Option<&str> {
        match self {
            Self::Job(job) => job.cause.as_deref(),
            Self::Service(_, grown) => grown.cause.as_deref(),
        }
    }
}

/// An alert that stands.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Alert {
    about: About,
    agent: String,
    since: Timestamp,
    /// When it was last seen.
    seen: Instant,
}

/// The alerts that stand.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Standing(BTreeMap<Key, Alert>);

impl Standing {
    /// Takes in an agent's current state; `judged` leaves out jobs that other agents judge. Returns
    /// the number of alerts for which there was no room.
    pub(super) fn take(&mut self, watched: &Watched, judged: bool, now: Instant, at: Timestamp) -> usize {
        let mut beyond = 0;
        for job in watched.jobs.iter().filter(|job| job.is_ill && (!judged || is_judge(job, &watched.agent))) {
            // The job that is shown has more details.
            let job = watched.job.as_ref().filter(|shown| shown.name == job.name).unwrap_or(job);
            let culprit = job.culprits.first();
            let key = Key {
                job: job.id.clone().unwrap_or_else(|| job.name.clone()),
                service: String::new(),
                verdict: job.verdict.clone(),
                rank: culprit.map(|culprit| culprit.rank.to_string()).unwrap_or_default(),
                node: culprit.map(|culprit| culprit.node.clone()).unwrap_or_default(),
            };
            let is_in = self.put(key, About::Job(Box::new(job.clone())), &watched.agent, now, at);
            beyond += usize::from(!is_in);
        }
        let services = watched.own.iter().flat_map(|own| &own.services);
        for (service, grown) in services.filter_map(|service| Some((service, service.grown.as_ref()?))) {
            let key = Key {
                job: String::new(),
                service: service.name.clone(),
                verdict: "tail_grown".to_owned(),
                rank: String::new(),
                node: watched.agent.clone(),
            };
            let is_in = self.put(key, About::Service(service.name.clone(), grown.clone()), &watched.agent, now, at);
            beyond += usize::from(!is_in);
        }
        // Right after its start an agent does not know yet what had grown before.
        if watched.own.as_ref().is_none_or(|own| !own.grown_is_known) {
            let of_services =
                self.0.iter_mut().filter(|(key, alert)| !key.service.is_empty() && alert.agent == watched.agent);
            of_services.for_each(|(_, alert)| alert.seen = now);
        }
        self.0.retain(|_, alert| now.saturating_duration_since(alert.seen) < OVER_AFTER);
        beyond
    }

    /// An alert is seen; false where there is no room for it.
    fn put(&mut self, key: Key, about: About, agent: &str, now: Instant, at: Timestamp) -> bool {
        let is_in = self.0.contains_key(&key) || self.0.len() < MOST;
        if is_in {
            let alert = self.0.entry(key).or_insert_with(|| Alert {
                about: about.clone(),
                agent: agent.to_owned(),
                since: at,
                seen: now,
            });
            (alert.about, alert.seen) = (about, now);
        }
        is_in
    }
}

/// A kind of receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Alertmanager,
    Webhook,
    Slack,
}

/// The messages to a receiver.
#[derive(Debug)]
pub(super) struct Outbox {
    kind: Kind,
    sent: BTreeMap<Key, Sent>,
    retry: Duration,
    not_before: Option<Instant>,
}

#[derive(Debug)]
struct Sent {
    alert: Alert,
    /// When the receiver took it; none: it has not.
    at: Option<Instant>,
    /// It is over, and the receiver has not taken that yet.
    over: Option<Timestamp>,
}

/// One request to a receiver, and the alerts that it is about.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) body: Value,
    about: Vec<Key>,
}

impl Outbox {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, sent: BTreeMap::new(), retry: RETRY, not_before: None }
    }

    /// The messages to send now.
    pub(super) fn due(&mut self, standing: &Standing, now: Instant, at: Timestamp) -> Vec<Message> {
        for (key, alert) in &standing.0 {
            let sent =
                self.sent.entry(key.clone()).or_insert_with(|| Sent { alert: alert.clone(), at: None, over: None });
            if sent.over.take().is_some() {
                // It began again before the receiver knew of its end.
                sent.at = None;
            }
            sent.alert = alert.clone();
        }
        for (key, sent) in &mut self.sent {
            if !standing.0.contains_key(key) && sent.over.is_none() {
                (sent.over, sent.at) = (Some(at), None);
            }
        }
        if self.not_before.is_some_and(|until| now < until) {
            return Vec::new();
        }
        let again = self.kind == Kind::Alertmanager;
        let is_due = |sent: &Sent| match sent.at {
            None => true,
            Some(taken) => again && sent.over.is_none() && now.saturating_duration_since(taken) >= AGAIN,
        };
        let due: Vec<(&Key, &Sent)> = self.sent.iter().filter(|(_, sent)| is_due(sent)).collect();
        match self.kind {
            _ if due.is_empty() => Vec::new(),
            Kind::Alertmanager => {
                let alerts: Vec<Value> = due.iter().map(|(key, sent)| alertmanager(key, sent, at)).collect();
                vec![Message { body: alerts.into(), about: due.iter().map(|(key, _)| (*key).clone()).collect() }]
            }
            Kind::Webhook => {
                due.iter().map(|(key, sent)| Message { body: webhook(sent), about: vec![(*key).clone()] }).collect()
            }
            Kind::Slack => {
                due.iter().map(|(key, sent)| Message { body: slack(sent), about: vec![(*key).clone()] }).collect()
            }
        }
    }

    /// The receiver took a message.
    pub(super) fn taken(&mut self, message: &Message, now: Instant) {
        (self.retry, self.not_before) = (RETRY, None);
        for key in &message.about {
            if let Some(sent) = self.sent.get_mut(key) {
                match sent.over {
                    Some(_) => drop(self.sent.remove(key)),
                    None => sent.at = Some(now),
                }
            }
        }
    }

    /// It did not take it: nothing is sent to it for a while.
    pub(super) fn refused(&mut self, now: Instant) {
        self.not_before = now.checked_add(self.retry);
        self.retry = (self.retry * 2).min(RETRY_MOST);
        // Bounded: alerts that began and ended without a message being taken are dropped.
        while self.sent.len() > MOST {
            let Some(oldest) = self.sent.iter().min_by_key(|(_, sent)| sent.alert.since).map(|(key, _)| key.clone())
            else {
                break;
            };
            self.sent.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use model::watch::{AgentNow, CulpritNow, ServiceNow};

    use super::*;

    fn watched(ill: bool, judge: &str) -> Watched {
        let job = JobNow {
            name: "4711".into(),
            id: Some("4711".into()),
            verdict: "rank".into(),
            sentence: "Rank 5 on <n1> holds up 7 ranks".into(),
            is_ill: ill,
            culprits: vec![CulpritNow { rank: 5, node: "n1".into(), ..CulpritNow::default() }],
            judge: Some(judge.into()),
            ..JobNow::default()
        };
        Watched { agent: "n0".into(), jobs: vec![job], ..Watched::default() }
    }

    fn later(from: Instant, seconds: u64) -> Instant {
        from + Duration::from_secs(seconds)
    }

    #[test]
    fn only_the_judge_tells_and_what_is_gone_is_over() {
        let (now, at) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let mut standing = Standing::default();
        standing.take(&watched(true, "n9"), true, now, at);
        assert!(standing.0.is_empty(), "another judges it");
        standing.take(&watched(true, "n9"), false, now, at);
        assert_eq!(standing.0.len(), 1);
        standing.take(&watched(false, "n9"), false, later(now, 5), at);
        assert_eq!(standing.0.len(), 1, "a moment is no end");
        standing.take(&watched(false, "n9"), false, later(now, 11), at);
        assert!(standing.0.is_empty());
    }

    #[test]
    fn alertmanager_gets_it_again_until_it_has_taken_the_end() {
        let (now, at) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let (mut standing, mut out) = (Standing::default(), Outbox::new(Kind::Alertmanager));
        standing.take(&watched(true, "n0"), true, now, at);
        let first = out.due(&standing, now, at);
        assert_eq!(first[0].body[0]["labels"]["rank"], "5");
        assert_eq!(first[0].body[0]["endsAt"], "1970-01-01T00:04:00Z");
        // The receiver is down: nothing is sent for a while, then it is tried again.
        out.refused(now);
        assert!(out.due(&standing, later(now, 1), at).is_empty());
        let again = out.due(&standing, later(now, 6), at);
        out.taken(&again[0], later(now, 6));
        assert!(out.due(&standing, later(now, 30), at).is_empty());
        assert_eq!(out.due(&standing, later(now, 67), at).len(), 1, "each minute");
        let over = out.due(&Standing::default(), later(now, 70), at);
        assert_eq!(over[0].body[0]["endsAt"], "1970-01-01T00:00:00Z");
        assert_eq!(out.due(&Standing::default(), later(now, 71), at).len(), 1, "until it was taken");
        out.taken(&over[0], later(now, 72));
        assert!(out.due(&Standing::default(), later(now, 200), at).is_empty());
        assert!(out.sent.is_empty());
    }

    #[test]
    fn a_webhook_gets_two_messages_and_slack_no_markup_of_others() {
        let (now, at) = (Instant::now(), Timestamp::UNIX_EPOCH);
        for kind in [Kind::Webhook, Kind::Slack] {
            let (mut standing, mut out) = (Standing::default(), Outbox::new(kind));
            standing.take(&watched(true, "n0"), true, now, at);
            let first = out.due(&standing, now, at);
            out.taken(&first[0], now);
            assert!(out.due(&standing, later(now, 600), at).is_empty());
            let over = out.due(&Standing::default(), later(now, 700), at);
            if kind == Kind::Webhook {
                assert_eq!((&first[0].body["status"], &over[0].body["status"]), (&"firing".into(), &"resolved".into()));
                assert_eq!(first[0].body["job"]["culprits"][0]["rank"], 5);
            } else {
                assert!(first[0].body["text"].as_str().unwrap().contains("&lt;n1&gt;"));
            }
            out.taken(&over[0], later(now, 701));
            assert!(out.sent.is_empty());
        }
    }

    #[test]
    fn a_service_whose_p99_has_grown_is_an_alert_of_its_agent() {
        let (now, at) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let grown = GrownNow { sentence: "p99 of chat on n0 is 61 ms".into(), ..GrownNow::default() };
        let chat = ServiceNow { name: "chat".into(), grown: Some(grown), ..ServiceNow::default() };
        let services = vec![chat, ServiceNow { name: "well".into(), ..ServiceNow::default() }];
        let own = Some(AgentNow { services, grown_is_known: true, ..AgentNow::default() });
        let watched = Watched { agent: "n0".into(), own, ..Watched::default() };
        let mut standing = Standing::default();
        assert_eq!((standing.take(&watched, true, now, at), standing.0.len()), (0, 1));
        let sent = |kind| Outbox::new(kind).due(&standing, now, at)[0].body.clone();
        let labels = sent(Kind::Alertmanager)[0]["labels"].clone();
        assert_eq!((&labels["alertname"], &labels["service"]), (&"RankmeshTailGrownOnHost".into(), &"chat".into()));
        assert_eq!((&labels["node"], labels.get("job")), (&"n0".into(), None));
        assert_eq!(sent(Kind::Webhook)["service"]["grown"]["sentence"], "p99 of chat on n0 is 61 ms");
        assert_eq!(sent(Kind::Slack)["text"], ":warning: Service chat: p99 of chat on n0 is 61 ms");
        // An agent that starts again does not know of it at first: that is no end.
        let starts = Watched { own: Some(AgentNow::default()), ..watched.clone() };
        for seconds in [9, 18] {
            standing.take(&starts, true, later(now, seconds), at);
            assert_eq!(standing.0.len(), 1);
        }
        let knows = Watched { own: Some(AgentNow { grown_is_known: true, ..AgentNow::default() }), ..watched };
        standing.take(&knows, true, later(now, 30), at);
        assert_eq!(standing.0.len(), 0);
    }

    #[test]
    fn a_dead_receiver_costs_bounded_memory() {
        let (now, at) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let mut out = Outbox::new(Kind::Slack);
        for number in 0..4 * MOST as u64 {
            let mut ill = watched(true, "n0");
            ill.jobs[0].id = Some(number.to_string());
            let mut standing = Standing::default();
            standing.take(&ill, true, now, at);
            out.due(&standing, later(now, 1_000 * number), at);
            out.refused(later(now, 1_000 * number));
        }
        assert!(out.sent.len() <= MOST, "{}", out.sent.len());
    }
}
