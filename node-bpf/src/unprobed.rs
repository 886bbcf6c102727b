//! Communication libraries whose calls are not recorded: builds of gloo that hide its functions,
//! and UCC. If processes of a host use them, this is reported, once each.
//!
//! UCC's operations begin with a request (`ucc_collective_init`, `ucc_collective_post`) and end
//! where the program happens to ask (`ucc_collective_test`), so a call says nothing of a wait; and
//! its teams tell their ranks in a table of the caller's. Under MPI its callers are MPI's
//! collectives, which are recorded.

use std::collections::HashSet;
use std::fs;

use crate::libraries::library_of;
use crate::maps::Mapping;
use crate::symbol_probes::ProbeSpec;
use record::Library;

/// One such library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Unprobed {
    Gloo,
    Ucc,
}

/// The names of PyTorch's threads that run gloo's operations (ProcessGroupGloo::runLoop) and its
/// sockets (gloo/transport/tcp/loop.cc): they exist once a process group of it is made.
const GLOO_THREADS: &[&str] = &["pt_gloo_runloop", "gloo_tcp_loop"];

impl Unprobed {
    /// Why its calls are not recorded, and what can be had.
    fn why(self) -> &'static str {
        match self {
            Self::Gloo => "its library hides gloo's functions (a build of PyTorch that exports them is recorded)",
            Self::Ucc => "`rankmesh up --probe 'libucc.so.1:ucc_collective_post'` counts them",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gloo => "gloo",
            Self::Ucc => "UCC",
        }
    }

    /// Whether one of the user's probes is of it.
    fn is_probed(self, probes: &[ProbeSpec]) -> bool {
        let word = self.name().to_ascii_lowercase();
        probes.iter().any(|probe| probe.to_string().contains(&word))
    }
}

/// The ones that were seen on this host.
#[derive(Debug, Default)]
pub(crate) struct UnprobedLibraries {
    reported: HashSet<Unprobed>,
    /// Processes with a library that may have gloo inside and exports none of its functions: their
    /// threads are looked at.
    hiding: HashSet<u32>,
}

fn is_ucc(mapping: &Mapping<'_>) -> bool {
    mapping.file_name().starts_with(b"libucc.so")
}

impl UnprobedLibraries {
    /// Whether a process with this code is to be looked at: most are not.
    pub(crate) fn concern(&self, mappings: &[Mapping<'_>]) -> bool {
        mappings.iter().any(is_ucc)
    }

    /// Looks at what a process has mapped as code.
    pub(crate) fn look(&mut self, pid: u32, mappings: &[Mapping<'_>], probes: &[ProbeSpec]) -> Option<String> {
        let under_mpi = mappings.iter().any(|mapping| library_of(mapping.file_name()) == Some(Library::Mpi));
        let found = mappings.iter().any(is_ucc) && !under_mpi;
        found.then(|| self.report(Unprobed::Ucc, pid, probes)).flatten()
    }

    /// Records that a process has a library that exports no function of gloo.
    pub(crate) fn hides_gloo(&mut self, pid: u32) {
        self.hiding.insert(pid);
    }

    /// Checks whether one of these processes runs gloo; ended ones are dropped.
    pub(crate) fn look_at_threads(&mut self, probes: &[ProbeSpec]) -> Option<String> {
        if self.reported.contains(&Unprobed::Gloo) {
            self.hiding.clear();
            return None;
        }
        self.hiding.retain(|pid| fs::exists(format!("/proc/{pid}")).unwrap_or(false));
        let runs = self.hiding.iter().find(|pid| runs_gloo(**pid)).copied();
        runs.and_then(|pid| self.report(Unprobed::Gloo, pid, probes))
    }

    fn report(&mut self, library: Unprobed, pid: u32, probes: &[ProbeSpec]) -> Option<String> {
        if library.is_probed(probes) || !self.reported.insert(library) {
            return None;
        }
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let (name, why) = (library.name(), library.why());
        Some(format!("calls of {name} are not recorded here, and {} (pid {pid}) has it: {why}", program.trim_end()))
    }
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

    const MAPS: &[u8] = b"7f02-7f03 r-xp 00000000 08:01 12 /opt/hpcx/ucc/lib/libucc.so.1\n\
        7f04-7f05 r-xp 00000000 08:01 13 /opt/hpcx/ompi/lib/libmpi.so.40\n";

    #[test]
    fn ucc_is_reported_once_and_not_under_mpi_or_where_the_user_probes_it() {
        let mappings: Vec<Mapping<'_>> = maps::mappings(MAPS).collect();
        let (alone, me) = (mappings.get(..1).unwrap(), std::process::id());
        let mut seen = UnprobedLibraries::default();
        assert!(seen.concern(&mappings) && seen.look(me, &mappings, &[]).is_none(), "MPI's calls are recorded");
        let report = seen.look(me, alone, &[]).unwrap();
        assert!(report.contains("UCC") && report.contains("--probe 'libucc.so.1:ucc_collective_post'"), "{report}");
        assert_eq!(seen.look(me, alone, &[]), None);
        let probe = ProbeSpec::function("libucc.so.1:ucc_collective_post").unwrap();
        assert_eq!(UnprobedLibraries::default().look(me, alone, &[probe]), None);
    }

    #[test]
    fn gloo_that_hides_its_functions_is_recognised_by_its_threads() {
        let mut seen = UnprobedLibraries::default();
        seen.hides_gloo(std::process::id());
        assert_eq!(seen.look_at_threads(&[]), None);
        let (ready, wait) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        let thread = std::thread::Builder::new().name("pt_gloo_runloop".to_owned()).spawn(move || {
            ready.0.send(()).unwrap();
            wait.1.recv().unwrap_err();
        });
        ready.1.recv().unwrap();
        let report = seen.look_at_threads(&[]).unwrap();
        assert!(report.contains("calls of gloo are not recorded") && report.contains("hides"), "{report}");
        assert_eq!(seen.look_at_threads(&[]), None);
        drop(wait.0);
        thread.unwrap().join().unwrap();
    }
}
