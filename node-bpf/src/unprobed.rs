//! Communication libraries whose calls are not recorded unless the user names a function of theirs:
//! gloo, PyTorch's backend for CPUs and control, and UCC. If processes of a host use them, this is
//! reported, once each.

use std::collections::HashSet;
use std::fs;

use crate::maps::Mapping;
use crate::symbol_probes::ProbeSpec;

/// One such library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Unprobed {
    /// In a file of its own.
    Gloo,
    /// Within PyTorch's own library, as its wheels have it.
    GlooInTorch,
    Ucc,
}

/// The names of PyTorch's threads that run gloo's operations (ProcessGroupGloo::runLoop) and its
/// sockets (gloo/transport/tcp/loop.cc): they exist once a process group of it is made.
const GLOO_THREADS: &[&str] = &["pt_gloo_runloop", "gloo_tcp_loop"];
/// The file of PyTorch's wheels that gloo is linked into.
const TORCH: &str = "libtorch_cpu.so";

impl Unprobed {
    /// By the name of a mapped file.
    fn of(file_name: &[u8]) -> Option<Self> {
        match () {
            () if file_name.starts_with(b"libgloo.so") => Some(Self::Gloo),
            () if file_name.starts_with(b"libucc.so") => Some(Self::Ucc),
            () => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gloo | Self::GlooInTorch => "gloo",
            Self::Ucc => "UCC",
        }
    }

    /// The flag that has it recorded.
    fn probe(self) -> &'static str {
        match self {
            Self::Gloo => "libgloo.so.0:gloo::allreduce",
            Self::GlooInTorch => "libtorch_cpu.so:gloo::allreduce",
            Self::Ucc => "libucc.so.1:ucc_collective_post",
        }
    }

    /// Whether one of the user's probes is of it.
    fn is_probed(self, probes: &[ProbeSpec]) -> bool {
        let of = |text: String| match self {
            Self::Gloo | Self::GlooInTorch => text.contains("gloo"),
            Self::Ucc => text.contains("ucc"),
        };
        probes.iter().any(|probe| of(probe.to_string()))
    }
}

/// The ones that were seen on this host.
#[derive(Debug, Default)]
pub(crate) struct UnprobedLibraries {
    reported: HashSet<Unprobed>,
    /// Processes with PyTorch whose threads are looked at.
    torch: HashSet<u32>,
}

impl UnprobedLibraries {
    /// Whether a process with this code is to be looked at: most are not.
    pub(crate) fn concern(&self, mappings: &[Mapping<'_>]) -> bool {
        mappings.iter().any(|mapping| is_torch(mapping) || Unprobed::of(mapping.file_name()).is_some())
    }

    /// Looks at what a process has mapped as code.
    pub(crate) fn look(&mut self, pid: u32, mappings: &[Mapping<'_>], probes: &[ProbeSpec]) -> Vec<String> {
        if mappings.iter().any(is_torch) {
            self.torch.insert(pid);
        }
        let found = mappings.iter().filter_map(|mapping| Unprobed::of(mapping.file_name()));
        found.filter_map(|library| self.report(library, pid, probes)).collect()
    }

    /// Checks whether processes with PyTorch run gloo; ended ones are dropped.
    pub(crate) fn look_at_threads(&mut self, probes: &[ProbeSpec]) -> Vec<String> {
        if self.reported.contains(&Unprobed::Gloo) || self.reported.contains(&Unprobed::GlooInTorch) {
            self.torch.clear();
            return Vec::new();
        }
        self.torch.retain(|pid| fs::exists(format!("/proc/{pid}")).unwrap_or(false));
        let runs = self.torch.iter().find(|pid| runs_gloo(**pid)).copied();
        runs.and_then(|pid| self.report(Unprobed::GlooInTorch, pid, probes)).into_iter().collect()
    }

    fn report(&mut self, library: Unprobed, pid: u32, probes: &[ProbeSpec]) -> Option<String> {
        if library.is_probed(probes) || !self.reported.insert(library) {
            return None;
        }
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let (name, probe) = (library.name(), library.probe());
        Some(format!(
            "calls of {name} are not recorded here, and {} (pid {pid}) has it: `rankmesh up --probe '{probe}'` counts them",
            program.trim_end()
        ))
    }
}

fn is_torch(mapping: &Mapping<'_>) -> bool {
    mapping.file_name().starts_with(TORCH.as_bytes())
}

fn runs_gloo(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
    threads.flatten().map(name).any(|name| GLOO_THREADS.contains(&name.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps;

    const MAPS: &[u8] = b"7f00-7f01 r-xp 00000000 08:01 11 /usr/lib/x86_64-linux-gnu/libgloo.so.0.5.0\n\
        7f02-7f03 r-xp 00000000 08:01 12 /opt/hpcx/ucc/lib/libucc.so.1\n\
        7f04-7f05 r-xp 00000000 08:01 13 /venv/lib/libtorch_cpu.so\n";

    #[test]
    fn each_library_is_reported_once_and_not_where_the_user_probes_it() {
        let mappings: Vec<Mapping<'_>> = maps::mappings(MAPS).collect();
        let mut seen = UnprobedLibraries::default();
        let reports = seen.look(std::process::id(), &mappings, &[]);
        assert_eq!(reports.len(), 2, "{reports:?}");
        assert!(
            reports[0].contains("gloo") && reports[0].contains("--probe 'libgloo.so.0:gloo::allreduce'"),
            "{reports:?}"
        );
        assert!(reports[1].contains("UCC"), "{reports:?}");
        assert!(seen.look(std::process::id(), &mappings, &[]).is_empty());

        let probe = ProbeSpec::function("libgloo.so.0:gloo::allreduce").unwrap();
        let reports = UnprobedLibraries::default().look(1, &mappings, &[probe]);
        assert!(reports.len() == 1 && reports[0].contains("UCC"), "{reports:?}");
    }

    #[test]
    fn gloo_within_pytorch_is_recognised_by_its_threads() {
        let (mut seen, mappings) = (UnprobedLibraries::default(), maps::mappings(MAPS).skip(2).collect::<Vec<_>>());
        assert!(seen.look(std::process::id(), &mappings, &[]).is_empty());
        assert!(seen.look_at_threads(&[]).is_empty());
        let (ready, wait) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        let thread = std::thread::Builder::new().name("pt_gloo_runloop".to_owned()).spawn(move || {
            ready.0.send(()).unwrap();
            wait.1.recv().unwrap_err();
        });
        ready.1.recv().unwrap();
        let reports = seen.look_at_threads(&[]);
        assert!(reports.len() == 1 && reports[0].contains("libtorch_cpu.so:gloo::allreduce"), "{reports:?}");
        assert!(seen.look_at_threads(&[]).is_empty());
        drop(wait.0);
        thread.unwrap().join().unwrap();
    }
}
