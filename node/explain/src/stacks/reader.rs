//! Reads the stacks of any process: finds out once what program it is, then reads it in the way
//! that fits.

use std::collections::HashMap;

use record::ThreadWalk;

use super::modules::{Files, mappings};
use super::native::NativeReader;
use super::own::OwnWalks;
use super::process::{Identity, refused};
use super::python::{PythonReader, find};
use super::types::{Limits, ProcessStacks, StacksError, ThreadStack};

/// Reads stacks of other processes, and caches facts about them for the next read.
#[derive(Debug, Default)]
pub struct StackReader {
    limits: Limits,
    files: Files,
    processes: HashMap<u32, (Identity, Target)>,
}

#[derive(Debug)]
enum Target {
    Python(Box<PythonReader>),
    Native(Box<NativeReader>),
}

impl StackReader {
    /// With these bounds.
    pub fn new(limits: Limits) -> StackReader {
        StackReader { limits, ..StackReader::default() }
    }

    /// The bounds it was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The stacks of a process now. It is not stopped and runs none of our code.
    pub fn read(&mut self, pid: u32) -> Result<ProcessStacks, StacksError> {
        self.read_or_ask(pid, &mut None)
    }

    /// As [`Self::read`]; threads that run are asked to walk their Python frames themselves, or for
    /// a copy of their stack, and are in what [`Self::answered`] returns.
    pub(super) fn read_or_ask(
        &mut self,
        pid: u32,
        own: &mut Option<&mut dyn OwnWalks>,
    ) -> Result<ProcessStacks, StacksError> {
        let result = self.read_known(pid, own);
        if result.is_err() {
            self.processes.remove(&pid);
        }
        result
    }

    /// The stacks of the threads of a process that were asked, and why others were not.
    pub(super) fn answered(
        &mut self,
        pid: u32,
        walks: &[ThreadWalk],
    ) -> Result<(Vec<ThreadStack>, Option<String>), StacksError> {
        Ok(match self.processes.get_mut(&pid) {
            Some((_, Target::Python(reader))) => {
                let stacks = reader.answered(&self.limits, walks).map_err(|errno| refused(pid, errno))?;
                (stacks, reader.asked.refused.clone())
            }
            Some((_, Target::Native(reader))) => (reader.answered(&self.limits, walks)?, reader.asked.refused.clone()),
            None => Default::default(),
        })
    }

    /// Drops the cached facts of all processes but these.
    pub fn keep_only(&mut self, pids: &[u32]) {
        self.processes.retain(|pid, _| pids.contains(pid));
    }

    fn read_known(&mut self, pid: u32, own: &mut Option<&mut dyn OwnWalks>) -> Result<ProcessStacks, StacksError> {
        let identity = Identity::of(pid)?;
        let known = self.processes.remove(&pid).filter(|(known, target)| {
            // A process that was native may have loaded an interpreter since.
            *known == identity && !matches!(target, Target::Native(reader) if reader.is_stale())
        });
        let (_, target) = match known {
            Some(known) => self.processes.entry(pid).insert_entry(known).into_mut(),
            None => {
                let target = self.attach(pid)?;
                self.processes.entry(pid).insert_entry((identity, target)).into_mut()
            }
        };
        let (runtime, (threads, threads_left_out)) = match target {
            Target::Python(reader) => {
                (reader.version().to_string(), reader.read(&self.limits, own).map_err(|errno| refused(pid, errno))?)
            }
            Target::Native(reader) => ("native".to_owned(), reader.read(&mut self.files, &self.limits, own)?),
        };
        if !identity.is_current() {
            return Err(StacksError::Ended { pid });
        }
        Ok(ProcessStacks { pid, start_ticks: identity.start_ticks, runtime, threads, threads_left_out })
    }

    fn attach(&mut self, pid: u32) -> Result<Target, StacksError> {
        let mappings = mappings(pid)?;
        if mappings.is_empty() {
            return Err(StacksError::NotReadable {
                pid,
                reason: "it has no memory of its own (a kernel thread)".into(),
            });
        }
        if !self.limits.native
            && let Some(interpreter) = find(pid, &mappings, &mut self.files)?
        {
            let reader = PythonReader::new(pid, interpreter);
            // Programs link libpython and never start it, as LAMMPS does.
            if reader.is_started() {
                return Ok(Target::Python(Box::new(reader)));
            }
        }
        if cfg!(not(target_arch = "x86_64")) {
            let reason = "native stacks are read on x86-64 only".into();
            return Err(StacksError::NotReadable { pid, reason });
        }
        Ok(Target::Native(Box::new(NativeReader::new(pid, &mappings, &mut self.files))))
    }
}
