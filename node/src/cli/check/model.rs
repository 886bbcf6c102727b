//! The judgement of `rankmesh check`, without IO: makes findings, each with its remedy, of what was
//! seen on the host. The serialised form is a contract with people's scripts: fields are added,
//! never renamed. `text` prints it.

use node_bpf::privileges::{self, Capability, Needed, PRIVILEGES};
use node_bpf::{AttachMode, CLASSES, ClassState, Host, Survey};
use serde::Serialize;

/// The input of the judgement.
pub(super) struct Seen<'a> {
    pub(super) survey: &'a Survey,
    /// Capabilities of [`PRIVILEGES`] that this process has.
    pub(super) granted: &'a [Capability],
    /// This program's file.
    pub(super) binary: &'a str,
}

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) capture: Verdict,
    pub(super) findings: Vec<Finding>,
    pub(super) classes: Vec<Class>,
    pub(super) libraries: Vec<Library>,
}

/// Whether anything can be recorded.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) possible: bool,
    /// How calls are probed: "session", "multi", "single".
    pub(super) attach: Option<&'static str>,
    /// The only user whose processes would be recorded; none: everybody's.
    pub(super) only_user: Option<u32>,
    /// Why not.
    pub(super) reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Ok,
    /// Something is recorded less well than it could be.
    Warning,
    /// Nothing is recorded because of it.
    Missing,
}

/// One finding.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) what: &'static str,
    pub(super) state: State,
    pub(super) detail: String,
    pub(super) remedy: Option<String>,
}

/// One class of records.
#[derive(Debug, Serialize)]
pub(super) struct Class {
    pub(super) name: &'static str,
    pub(super) records: &'static str,
    pub(super) tables: &'static [&'static str],
    /// "on", "waiting" (no process uses its libraries yet), "absent" (this host has none of it),
    /// "not_wanted", "off".
    pub(super) state: &'static str,
    pub(super) why: Option<String>,
    pub(super) remedy: Option<String>,
}

/// One library file in use.
#[derive(Debug, Serialize)]
pub(super) struct Library {
    pub(super) kind: &'static str,
    pub(super) version: Option<String>,
    pub(super) path: String,
    pub(super) processes: usize,
    /// The class that records its calls.
    pub(super) class: Option<&'static str>,
}

/// Judges.
pub(super) fn judge(seen: &Seen<'_>) -> Report {
    let survey = seen.survey;
    let attach = survey.attach.as_ref().ok().map(|mode| match mode {
        AttachMode::Session => "session",
        AttachMode::Multi => "multi",
        AttachMode::Single => "single",
        AttachMode::Stub => "stub",
    });
    let reason = survey.attach.as_ref().err().map(ToString::to_string);
    Report {
        findings: findings(seen),
        classes: classes(survey, reason.as_deref()),
        libraries: survey
            .libraries
            .iter()
            .map(|library| Library {
                kind: library.kind,
                version: library.version.clone(),
                path: library.path.to_string_lossy().into_owned(),
                processes: library.processes,
                class: library.class,
            })
            .collect(),
        capture: Verdict { possible: attach.is_some(), attach, only_user: survey.only_user, reason },
    }
}

fn ok(what: &'static str, detail: impl Into<String>) -> Finding {
    Finding { what, state: State::Ok, detail: detail.into(), remedy: None }
}

fn not(what: &'static str, state: State, detail: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { what, state, detail: detail.into(), remedy: Some(remedy.into()) }
}

fn findings(seen: &Seen<'_>) -> Vec<Finding> {
    let host = &seen.survey.host;
    let mut list = vec![kernel(host), btf(host), uprobes(host)];
    list.extend(lockdown(host));
    list.push(capabilities(seen));
    list.extend(whose(seen.survey));
    list.push(from_ranks(seen));
    list.extend(settings(host));
    list.push(cgroup(host));
    list.extend(memlock(seen.survey));
    list.extend(namespace(host));
    list.extend(processes(seen));
    list
}

/// (major, minor) of "6.1.0-50-cloud-amd64".
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn kernel(host: &Host) -> Finding {
    let detail = format!("{} {}", host.release, host.machine);
    match version(&host.release) {
        Some(version) if version < (5, 8) => not(
            "kernel",
            State::Warning,
            format!("{detail}: older than what capture is made for"),
            "use Linux 5.10 or later",
        ),
        _ => ok("kernel", detail),
    }
}

fn btf(host: &Host) -> Finding {
    if host.btf {
        return ok("BTF", "present");
    }
    let remedy = "use a kernel built with CONFIG_DEBUG_INFO_BTF, as the distributions' kernels from 5.10 on are";
    not("BTF", State::Missing, "absent: /sys/kernel/btf/vmlinux cannot be read", remedy)
}

fn uprobes(host: &Host) -> Finding {
    let detail = match (host.uprobe_session, host.uprobe_multi) {
        (true, _) => "one program for entry and return, one link a file (uprobe.session)",
        (false, true) => "one link a file for entries, one for returns (uprobe.multi)",
        (false, false) => "one link a function: the kernel has no uprobe.multi (Linux 6.6), so CAP_SYS_ADMIN is needed",
    };
    ok("uprobes", detail)
}

fn lockdown(host: &Host) -> Option<Finding> {
    let mode = host.lockdown.as_deref()?;
    if mode == "confidentiality" {
        let remedy = "boot without lockdown=confidentiality (integrity is enough for Secure Boot)";
        return Some(not("lockdown", State::Missing, "confidentiality: BPF may not read kernel memory", remedy));
    }
    Some(ok("lockdown", mode))
}

fn capabilities(seen: &Seen<'_>) -> Finding {
    let (multi, only_user) = (seen.survey.host.uprobe_multi, seen.survey.only_user);
    let wanted = privileges::kept_for(multi, only_user);
    let missing: Vec<_> = PRIVILEGES
        .iter()
        .filter(|privilege| wanted.contains(&privilege.capability) && !seen.granted.contains(&privilege.capability))
        .collect();
    if missing.is_empty() {
        return ok("capabilities", "all that capture uses; `rankmesh up` gives up the others");
    }
    let detail: Vec<String> = missing.iter().map(|p| format!("{} ({})", p.capability, p.purpose)).collect();
    let state = if missing.iter().any(|p| p.needed != Needed::ForDetail) { State::Missing } else { State::Warning };
    let grant = privileges::setcap_argument(&wanted);
    let setcap = format!("sudo setcap {grant} {}", seen.binary);
    let remedy = match only_user {
        None => format!("run as root, or once: {setcap}"),
        Some(_) if !multi => {
            "run as root: before Linux 6.6 uprobes take CAP_SYS_ADMIN, which no user should be given".to_owned()
        }
        Some(_) => {
            format!("run as root; or, to record one's own processes (docs/security.md says what that grants): {setcap}")
        }
    };
    not("capabilities", state, format!("missing: {}", detail.join(", ")), remedy)
}

/// The user whose processes are recorded, if not everybody's.
fn whose(survey: &Survey) -> Option<Finding> {
    survey.attach.as_ref().ok()?;
    Some(match survey.only_user {
        None => ok("processes of", "every user"),
        Some(user) => ok(
            "processes of",
            format!("user {user} only: whoever runs this program records what is that user's own, and nothing else"),
        ),
    })
}

/// Rings of the MPI shim and the NCCL plugin, for hosts where eBPF cannot be used.
fn from_ranks(seen: &Seen<'_>) -> Finding {
    const WHAT: &str = "MPI shim, NCCL plugin";
    if seen.survey.attach.is_ok() {
        return ok(
            WHAT,
            "not needed: eBPF records these calls; with `rankmesh env` NCCL's device times (tier 3) take their place, which show \
             a GPU that is slower than the others",
        );
    }
    let detail = "ranks can hand their MPI and NCCL calls over by themselves (NCCL's with device times); CUDA calls, network, \
                  block IO and who takes the CPU stay unseen";
    let remedy = "start the agent (`rankmesh up`, `rankmesh slurm up`) as the user of the ranks, and the ranks after \
                  eval \"$(rankmesh env)\" (docs/slurm.md)";
    not(WHAT, State::Warning, detail, remedy)
}

/// The effect of the system's settings on processes without capabilities; with them they do not
/// matter.
fn settings(host: &Host) -> Vec<Finding> {
    let bpf = host
        .unprivileged_bpf_disabled
        .map(|value| ok("kernel.unprivileged_bpf_disabled", format!("{value}: BPF takes CAP_BPF, whatever the value")));
    let perf = host.perf_event_paranoid.map(|value| match host.uid {
        // Debian's and Ubuntu's kernels; root opens its events before it drops CAP_SYS_ADMIN.
        1.. if value > 2 => not(
            "kernel.perf_event_paranoid",
            State::Warning,
            format!("{value}: above 2 some distributions' kernels keep perf events (major faults) from users"),
            "sysctl kernel.perf_event_paranoid=2",
        ),
        _ => ok("kernel.perf_event_paranoid", format!("{value}: does not matter with CAP_PERFMON")),
    });
    bpf.into_iter().chain(perf).collect()
}

fn cgroup(host: &Host) -> Finding {
    match &host.cgroup2 {
        Some(mount) => ok("cgroup v2", format!("mounted at {}", mount.display())),
        None => not(
            "cgroup v2",
            State::Warning,
            "not mounted: --cgroup is of no use, and processes show no cgroup path",
            "mount -t cgroup2 none /sys/fs/cgroup",
        ),
    }
}

/// Kernels before 5.11 count BPF maps against the limit on locked memory. A process that may do so
/// raises it before the maps are made.
fn memlock(survey: &Survey) -> Option<Finding> {
    const ENOUGH_BYTES: u64 = 256 << 20;
    let old = version(&survey.host.release).is_some_and(|version| version < (5, 11));
    let limit = survey.host.memlock_bytes.filter(|bytes| old && survey.attach.is_err() && *bytes < ENOUGH_BYTES)?;
    let detail = format!("{} KiB, against which this kernel counts BPF maps", limit >> 10);
    Some(not("RLIMIT_MEMLOCK", State::Missing, detail, "ulimit -l unlimited (systemd: LimitMEMLOCK=infinity)"))
}

fn namespace(host: &Host) -> Option<Finding> {
    let detail = "this is not the host's pid namespace: the kernel reports other process ids than /proc shows here";
    let remedy = "run in the host's pid namespace (docker --pid=host, Kubernetes hostPID)";
    (!host.host_pid_namespace).then(|| not("pid namespace", State::Warning, detail, remedy))
}

fn processes(seen: &Seen<'_>) -> Option<Finding> {
    // other users' would not be recorded anyway
    let hidden = seen.survey.only_user.map_or(seen.survey.hidden_processes, |_| 0);
    let detail = format!("{hidden} may not be looked at: what they use is not in this list");
    let remedy = if seen.granted.contains(&Capability::CAP_SYS_PTRACE) {
        "nothing, unless ranks are among them: a security module (SELinux, AppArmor, Yama) or a sandbox protects them"
    } else {
        "grant CAP_SYS_PTRACE, or run as root"
    };
    (hidden > 0).then(|| not("processes", State::Warning, detail, remedy))
}

fn classes(survey: &Survey, no_capture: Option<&str>) -> Vec<Class> {
    let in_use = |class: &str| survey.libraries.iter().any(|library| library.class == Some(class));
    CLASSES
        .iter()
        .map(|class| {
            let found = survey.classes.iter().find(|status| status.name == class.name).map(|status| &status.state);
            let (state, why, remedy) = match found {
                Some(ClassState::Off { why, remedy }) => ("off", Some(why.clone()), Some(remedy.clone())),
                Some(ClassState::NotWanted) | None => ("not_wanted", None, None),
                Some(ClassState::Absent { why }) => ("absent", Some(why.clone()), None),
                Some(ClassState::On) => match no_capture.filter(|_| !class.programs.is_empty()) {
                    Some(_) => ("off", Some("capture cannot start".to_owned()), None),
                    None if !class.libraries.is_empty() && !in_use(class.name) => {
                        ("waiting", Some(format!("no process uses {}", list(class.libraries))), None)
                    }
                    None => ("on", None, None),
                },
            };
            Class { name: class.name, records: class.records, tables: class.tables, state, why, remedy }
        })
        .collect()
}

/// "a, b or c"
fn list(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [many @ .., last] => format!("{} or {last}", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use node_bpf::{ClassStatus, Error, LibraryInUse};

    use super::*;

    fn healthy() -> Survey {
        Survey {
            host: Host {
                release: "6.18.1".into(),
                machine: "x86_64".into(),
                btf: true,
                uprobe_multi: true,
                uprobe_session: true,
                lockdown: Some("none".into()),
                unprivileged_bpf_disabled: Some(2),
                perf_event_paranoid: Some(2),
                cgroup2: Some(PathBuf::from("/sys/fs/cgroup")),
                memlock_bytes: Some(8 << 20),
                host_pid_namespace: true,
                uid: 0,
            },
            attach: Ok(AttachMode::Session),
            only_user: None,
            classes: CLASSES.iter().map(|class| ClassStatus { name: class.name, state: ClassState::On }).collect(),
            libraries: vec![],
            hidden_processes: 0,
        }
    }

    fn every() -> Vec<Capability> {
        PRIVILEGES.iter().map(|privilege| privilege.capability).collect()
    }

    fn judged(survey: &Survey, granted: &[Capability]) -> Report {
        judge(&Seen { survey, granted, binary: "/opt/rankmesh" })
    }

    fn finding<'a>(report: &'a Report, what: &str) -> &'a Finding {
        report.findings.iter().find(|finding| finding.what == what).expect("a finding of this name")
    }

    #[test]
    fn a_healthy_host_needs_nothing() {
        let report = judged(&healthy(), &every());
        assert!(report.capture.possible);
        assert!(report.findings.iter().all(|finding| finding.state == State::Ok), "{:?}", report.findings);
        let detail = &finding(&report, "MPI shim, NCCL plugin").detail;
        assert!(detail.contains("not needed") && detail.contains("tier 3"), "{detail}");
        let collectives = report.classes.iter().find(|class| class.name == "collectives").expect("the class");
        assert_eq!(collectives.state, "waiting");
        assert!(collectives.why.as_deref().is_some_and(|why| why.contains("libnccl.so")));
        let text = super::super::text::text(&report);
        assert!(text.contains("(cuda_calls, call_rollups)"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn a_class_is_on_once_a_process_uses_its_library() {
        let mut survey = healthy();
        survey.libraries.push(LibraryInUse {
            kind: "NCCL",
            path: PathBuf::from("/opt/libnccl.so.2"),
            version: Some("2.27.5".into()),
            processes: 8,
            class: Some("collectives"),
        });
        let report = judged(&survey, &every());
        assert_eq!(report.classes.iter().find(|class| class.name == "collectives").map(|c| c.state), Some("on"));
        let json = serde_json::to_value(&report).expect("json");
        assert_eq!(json["libraries"][0]["version"], "2.27.5");
        assert_eq!(json["findings"][0]["state"], "ok");
    }

    #[test]
    fn an_ordinary_user_gets_the_capabilities_to_grant() {
        let mut survey = healthy();
        survey.attach = Err(Error::NotPermitted { missing: vec![Capability::CAP_BPF] });
        survey.hidden_processes = 40;
        survey.only_user = Some(1000);
        let report = judged(&survey, &[]);
        assert!(!report.capture.possible && report.capture.reason.is_some());
        let capabilities = finding(&report, "capabilities");
        assert_eq!(capabilities.state, State::Missing);
        let remedy = capabilities.remedy.as_deref().expect("a remedy");
        assert!(remedy.contains("setcap cap_bpf,cap_perfmon,") && remedy.ends_with(" /opt/rankmesh"), "{remedy}");
        // with file capabilities, every user who runs it has them
        assert!(!["sys_admin", "ptrace", "dac"].iter().any(|name| remedy.contains(name)), "{remedy}");
        let remedy = finding(&report, "MPI shim, NCCL plugin").remedy.as_deref().expect("a remedy");
        assert!(remedy.contains("rankmesh env"), "{remedy}");
        assert!(report.findings.iter().all(|finding| finding.what != "processes"), "others' are not recorded anyway");
        let state = |name: &str| report.classes.iter().find(|class| class.name == name).map(|class| class.state);
        assert_eq!((state("collectives"), state("offcpu")), (Some("off"), Some("off")));
        assert_eq!(state("host"), Some("on"), "samples need no privileges");
    }

    #[test]
    fn a_user_of_a_program_with_capabilities_sees_whose_processes_are_recorded() {
        let mut survey = healthy();
        survey.only_user = Some(1000);
        survey.host.uid = 1000;
        let report = judged(&survey, &[Capability::CAP_BPF, Capability::CAP_PERFMON]);
        assert_eq!(serde_json::to_value(&report).expect("json")["capture"]["only_user"], 1000);
        assert!(finding(&report, "processes of").detail.starts_with("user 1000 only"));
        assert_eq!(finding(&report, "capabilities").state, State::Warning, "names of kernel functions are missing");
        assert_eq!(finding(&judged(&healthy(), &every()), "processes of").detail, "every user");
        survey.host.uprobe_multi = false;
        let report = judged(&survey, &[]);
        assert!(finding(&report, "capabilities").remedy.as_deref().is_some_and(|r| !r.contains("setcap")));
    }

    #[test]
    fn hidden_processes_are_reported_where_everybodys_are_recorded() {
        let mut survey = healthy();
        survey.hidden_processes = 40;
        assert_eq!(finding(&judged(&survey, &[]), "processes").state, State::Warning);
    }

    #[test]
    fn without_multi_links_sys_admin_is_asked_for() {
        let mut survey = healthy();
        survey.host.uprobe_multi = false;
        survey.host.uprobe_session = false;
        let most: Vec<_> = every().into_iter().filter(|c| *c != Capability::CAP_SYS_ADMIN).collect();
        assert_eq!(finding(&judged(&healthy(), &most), "capabilities").state, State::Ok);
        let report = judged(&survey, &most);
        assert!(finding(&report, "capabilities").remedy.as_deref().is_some_and(|r| r.contains("cap_sys_admin")));
    }

    #[test]
    fn what_stands_in_the_way_is_named() {
        let mut survey = healthy();
        survey.host.release = "5.4.0-99-generic".into();
        survey.host.memlock_bytes = Some(65_536);
        survey.attach = Err(Error::NoBtf);
        survey.host.lockdown = Some("confidentiality".into());
        survey.host.cgroup2 = None;
        survey.host.host_pid_namespace = false;
        survey.host.btf = false;
        survey.classes[2].state = ClassState::Off { why: "no tracepoint".into(), remedy: "newer".into() };
        let report = judged(&survey, &every());
        for what in ["RLIMIT_MEMLOCK", "lockdown", "BTF"] {
            assert_eq!(finding(&report, what).state, State::Missing, "{what}");
        }
        for what in ["kernel", "cgroup v2", "pid namespace"] {
            assert_eq!(finding(&report, what).state, State::Warning, "{what}");
        }
        let class = &report.classes[2];
        assert_eq!(
            (class.state, class.why.as_deref(), class.remedy.as_deref()),
            ("off", Some("no tracepoint"), Some("newer"))
        );
    }

    #[test]
    fn kernel_versions() {
        assert_eq!(version("6.1.0-50-cloud-amd64"), Some((6, 1)));
        assert_eq!(version("5.15.0"), Some((5, 15)));
        assert_eq!(version("weird"), None);
    }
}
