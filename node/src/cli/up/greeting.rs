//! The text that `rankmesh up` prints when it has started, in at most ten lines: what it records,
//! what not and why, which other nodes there are, and what to ask next. Values in, text out; `mod`
//! collects the values.

use std::time::Duration;

use agent::RecordingState;
use node_bpf::{AttachMode, ClassState, ClassStatus};
use record::printable;
use verdicts::hostlist::{fold_names, fold_ranges};

/// Columns of a line, its label included.
const WIDTH: usize = 100;
/// Columns of a label.
const LABEL: usize = 10;
/// Reasons that are printed; `rankmesh check` has them all.
const REASONS: usize = 3;

/// The values about an agent that has just started.
#[derive(Debug, Clone)]
pub(super) struct Greeting {
    pub(super) version: &'static str,
    pub(super) node: String,
    pub(super) mesh: String,
    pub(super) address: String,
    pub(super) recording: Recorded,
    pub(super) rows: Rows,
    pub(super) peers: Vec<Peer>,
    /// Hosts to join were named, or known from before this start.
    pub(super) expects_others: bool,
    /// This node holds the mesh's CA, so that tokens are made here.
    pub(super) issuer: bool,
    /// The local socket, where commands do not look for it by themselves.
    pub(super) socket: Option<String>,
}

/// What is recorded on this host.
#[derive(Debug, Clone)]
pub(super) enum Recorded {
    /// By eBPF.
    Classes { mode: AttachMode, only_user: Option<u32>, classes: Vec<ClassStatus> },
    /// Not by eBPF.
    Otherwise(RecordingState),
}

/// Source of the rows of this host.
#[derive(Debug, Clone)]
pub(super) enum Rows {
    /// A trace store, with its present and its largest size.
    Store { path: String, rows: u64, max_mib: u64, max_age: Duration },
    /// A file that is served read-only.
    Served { path: String, tables: usize },
}

/// Another node of the mesh.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) live: bool,
    pub(super) ranks: Vec<u32>,
}

impl Greeting {
    /// The lines, without the last line's end.
    pub(super) fn text(&self) -> String {
        let title =
            format!("rankmesh {}: node {} of mesh {}, UDP {}", self.version, self.node, self.mesh, self.address);
        let mut lines = vec![cut(&printable(&title), WIDTH)];
        for (label, most, text) in [
            ("Records", 2, self.records()),
            ("Not", 2, self.not_recorded()),
            ("Store", 1, self.store()),
            ("Mesh", 1, self.others()),
            ("Ask", 2, self.ask()),
            ("Next", 1, self.next()),
        ] {
            if let Some(text) = text {
                lines.extend(labelled(label, most, &printable(&text)));
            }
        }
        lines.join("\n")
    }

    fn records(&self) -> Option<String> {
        let Recorded::Classes { mode, only_user, classes } = &self.recording else {
            return match &self.recording {
                Recorded::Otherwise(RecordingState::Shim(_)) => {
                    Some("MPI and NCCL calls of ranks that were started after eval \"$(rankmesh env)\"".to_owned())
                }
                _ => None,
            };
        };
        let on: Vec<&str> =
            classes.iter().filter(|class| class.state == ClassState::On).map(|class| class.name).collect();
        let by = match mode {
            AttachMode::Session | AttachMode::Multi => "eBPF",
            AttachMode::Single | AttachMode::Stub => "eBPF, a probe a function",
        };
        let whose = only_user.map_or_else(|| "all users".to_owned(), |user| format!("user {user} only"));
        Some(format!("{} ({by}; {whose})", on.join(", ")))
    }

    fn not_recorded(&self) -> Option<String> {
        let reasons: Vec<String> = match &self.recording {
            Recorded::Otherwise(state) => {
                return Some(match state {
                    RecordingState::Off => {
                        "anything: --capture off, or a served file; this agent only asks and answers".to_owned()
                    }
                    RecordingState::Failed(why) => format!("anything: {why}"),
                    RecordingState::Shim(why) => format!("what takes eBPF: {why}"),
                    RecordingState::On => state.to_string(),
                });
            }
            Recorded::Classes { classes, .. } => classes
                .iter()
                .filter_map(|class| match &class.state {
                    ClassState::Off { why, .. } | ClassState::Absent { why } => Some(format!("{}: {why}", class.name)),
                    ClassState::On | ClassState::NotWanted => None,
                })
                .collect(),
        };
        let more = reasons.len().saturating_sub(REASONS);
        let mut shown: Vec<String> = reasons.into_iter().take(REASONS).map(|reason| cut(&reason, 60)).collect();
        if more > 0 {
            shown.push(format!("{more} more (rankmesh check)"));
        }
        (!shown.is_empty()).then(|| shown.join("; "))
    }

    fn store(&self) -> Option<String> {
        Some(match &self.rows {
            Rows::Store { path, rows, max_mib, max_age } => {
                let hours = max_age.as_secs_f64() / 3_600.0;
                let age = if hours < 48.0 { format!("{hours:.1} h") } else { format!("{:.1} days", hours / 24.0) };
                format!("{rows} rows in {}; at most {max_mib} MiB and {age} are kept", cut(path, 40))
            }
            Rows::Served { path, tables } => format!("{path}, read-only: {tables} tables"),
        })
    }

    fn others(&self) -> Option<String> {
        let live: Vec<&Peer> = self.peers.iter().filter(|peer| peer.live).collect();
        let silent: Vec<&str> = self.peers.iter().filter(|peer| !peer.live).map(|peer| peer.name.as_str()).collect();
        let mut text = match live.as_slice() {
            [] if self.expects_others => "nobody else has answered yet; this agent goes on calling".to_owned(),
            [] => "this node alone".to_owned(),
            live => {
                let ranks: Vec<u64> = live.iter().flat_map(|peer| &peer.ranks).map(|rank| u64::from(*rank)).collect();
                let names = cut(&fold_names(live.iter().map(|peer| peer.name.as_str())), 30);
                let of_ranks = if ranks.is_empty() {
                    String::new()
                } else {
                    format!(", with ranks {}", cut(&fold_ranges(ranks), 16))
                };
                format!("{} other{}: {names}{of_ranks}", live.len(), if live.len() == 1 { "" } else { "s" })
            }
        };
        if !silent.is_empty() {
            text.push_str(&format!("; silent: {}", cut(&fold_names(silent), 16)));
        }
        Some(text)
    }

    fn ask(&self) -> Option<String> {
        let flag = self.socket.as_ref().map_or_else(String::new, |path| format!(", each with --socket {path}"));
        Some(format!("rankmesh top | rankmesh stragglers | rankmesh query \"SELECT …\"{flag}"))
    }

    fn next(&self) -> Option<String> {
        let alone = !self.peers.iter().any(|peer| peer.live);
        let text = match &self.recording {
            Recorded::Otherwise(state) if *state != RecordingState::Off => {
                "rankmesh check says what to do so that this host is recorded"
            }
            _ if alone && self.expects_others => "rankmesh doctor says whether UDP to the others is blocked",
            _ if alone && self.issuer => "another host: rankmesh identity token here, rankmesh up --join there",
            _ => "rankmesh doctor examines all nodes and the ways between them",
        };
        Some(text.to_owned())
    }
}

/// At most so many characters; what is left out shows.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// A label and its text on at most so many lines.
fn labelled(label: &str, most: usize, text: &str) -> Vec<String> {
    let room = WIDTH - LABEL;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("one at least");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    let last = lines.split_off(lines.len().min(most) - 1).join(" ");
    lines.push(last);
    let labels = std::iter::once(label).chain(std::iter::repeat(""));
    lines.iter().zip(labels).map(|(line, label)| format!("{label:<LABEL$}{}", cut(line, room))).collect()
}

#[cfg(test)]
mod tests {
    use node_bpf::CLASSES;

    use super::*;

    fn recorded(off: &[(&str, &str)]) -> Recorded {
        let state = |name: &str| match off.iter().find(|(class, _)| *class == name) {
            Some((_, why)) => ClassState::Off { why: (*why).to_owned(), remedy: String::new() },
            None if name == "gpus" => {
                ClassState::Absent { why: "no libnvidia-ml.so.1 here (the NVIDIA driver's NVML)".into() }
            }
            None if name == "symbols" => ClassState::NotWanted,
            None => ClassState::On,
        };
        let classes = CLASSES.iter().map(|class| ClassStatus { name: class.name, state: state(class.name) }).collect();
        Recorded::Classes { mode: AttachMode::Session, only_user: None, classes }
    }

    fn greeting() -> Greeting {
        Greeting {
            version: "0.1.0",
            node: "gpu017".to_owned(),
            mesh: "mesh-0badcafe".to_owned(),
            address: "10.0.0.17:7117".to_owned(),
            recording: recorded(&[]),
            rows: Rows::Store {
                path: "/var/lib/rankmesh/trace.db".to_owned(),
                rows: 1_234_567,
                max_mib: 4096,
                max_age: Duration::from_secs(7 * 86_400),
            },
            peers: (1..=16)
                .map(|host| Peer {
                    name: format!("gpu{host:03}"),
                    live: host != 9,
                    ranks: vec![host * 2, host * 2 + 1],
                })
                .collect(),
            expects_others: true,
            issuer: false,
            socket: None,
        }
    }

    /// Never more than ten lines of at most a hundred columns.
    fn printed(greeting: &Greeting) -> String {
        let text = greeting.text();
        assert!(text.lines().count() <= 10, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        text
    }

    #[test]
    fn ten_lines_for_a_host_that_records() {
        insta::assert_snapshot!("records", printed(&greeting()));
    }

    #[test]
    fn the_first_node_of_a_mesh_on_an_older_kernel_as_a_user() {
        let why = "the kernel has no tracepoint mm_vmscan_memcg_reclaim_begin";
        let off = ["faults", "fault-times", "reclaim", "cgroup-reclaim", "oom"].map(|class| (class, why));
        let Recorded::Classes { classes, .. } = recorded(&off) else { unreachable!() };
        let recording = Recorded::Classes { mode: AttachMode::Single, only_user: Some(1001), classes };
        let first = Greeting {
            recording,
            peers: vec![],
            expects_others: false,
            issuer: true,
            socket: Some("/tmp/alice/agent.sock".to_owned()),
            ..greeting()
        };
        insta::assert_snapshot!("older-kernel", printed(&first));
    }

    #[test]
    fn nothing_is_recorded_and_nobody_answers() {
        let not = Greeting {
            recording: Recorded::Otherwise(RecordingState::Failed("CAP_BPF and CAP_PERFMON are missing".to_owned())),
            peers: vec![],
            ..greeting()
        };
        insta::assert_snapshot!("nothing", printed(&not));
        let served = Greeting {
            recording: Recorded::Otherwise(RecordingState::Off),
            rows: Rows::Served { path: "/data/x.db".to_owned(), tables: 3 },
            peers: vec![Peer { name: "gpu018".to_owned(), live: true, ranks: vec![] }],
            ..greeting()
        };
        insta::assert_snapshot!("served", printed(&served));
    }

    #[test]
    fn whatever_names_and_reasons_hold_the_lines_stay_ten() {
        let long = "x".repeat(5_000);
        let worst = Greeting {
            node: long.clone(),
            recording: recorded(&CLASSES.iter().skip(3).map(|class| (class.name, long.as_str())).collect::<Vec<_>>()),
            rows: Rows::Store {
                path: format!("/{long}/\u{1b}[31m"),
                rows: u64::MAX,
                max_mib: u64::MAX,
                max_age: Duration::from_secs(3_600),
            },
            peers: (0..1_000).map(|n| Peer { name: format!("{n}-{long}"), live: n % 2 == 0, ranks: vec![n] }).collect(),
            socket: Some(format!("/{long}")),
            ..greeting()
        };
        assert!(!printed(&worst).contains('\u{1b}'));
    }
}
