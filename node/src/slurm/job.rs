//! A Slurm job, from its environment or from `scontrol`: ids, nodes, array, het groups, the end of
//! its time.
//!
//! Owned here: reading these facts, and the labels and names made of them. `up` uses them. The
//! variables are those of sbatch(1) and srun(1), "OUTPUT ENVIRONMENT VARIABLES"; the fields those
//! of `scontrol --oneliner show job`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::hostlist::{self, HostlistError};

/// Most groups of a het job that are read (Slurm's own limit is 128).
const MOST_GROUPS: u32 = 128;

/// Which job it is cannot be found out.
#[derive(Debug, Error)]
pub enum JobError {
    /// Not inside an allocation.
    #[error(
        "this is not inside a Slurm job ($SLURM_JOB_ID is not set): put it into the batch script, run it under salloc, or \
         name a running job with `rankmesh slurm attach JOBID`"
    )]
    NoJob,
    /// A fact is missing or wrong.
    #[error("{what} is '{value}': {why}")]
    Wrong {
        /// The variable or field.
        what: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        why: String,
    },
    /// The node list is not one.
    #[error("{what}: {error}")]
    Nodes {
        /// The variable or field.
        what: String,
        /// What is wrong with it.
        error: HostlistError,
    },
}

/// Description of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Job {
    /// Job id; of a het job that of its first component, of an array that of this task's own job.
    pub id: u32,
    /// Number of the user whose job it is.
    pub user: Option<u32>,
    /// How often it was requeued and started again.
    pub restarts: u32,
    /// Its nodes, each once, in Slurm's order.
    pub nodes: Vec<String>,
    /// Job id of the array and number of this task.
    pub array: Option<(u32, u32)>,
    /// Of a het job: each component's job id and nodes.
    pub groups: Vec<Group>,
    /// Where it was submitted.
    pub directory: Option<PathBuf>,
    /// Time left, when it is limited.
    pub left: Option<Duration>,
}

/// A component of a het job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Its own job id.
    pub id: u32,
    /// Its nodes.
    pub nodes: Vec<String>,
}

impl Job {
    /// The job that this process is in.
    ///
    /// # Errors
    /// See [`JobError`].
    pub fn of_environment() -> Result<Self, JobError> {
        Self::from_variables(
            &|name| std::env::var(name).ok().filter(|value| !value.is_empty()),
            u64::try_from(record::unix_now_ns() / 1_000_000_000).unwrap_or(0),
        )
    }

    /// The job that these variables describe; `now` in Unix seconds.
    ///
    /// # Errors
    /// See [`JobError`].
    pub fn from_variables(get: &dyn Fn(&str) -> Option<String>, now: u64) -> Result<Self, JobError> {
        let either = |names: [&str; 2]| names.into_iter().find_map(|name| Some((name.to_owned(), get(name)?)));
        let (what, value) = either(["SLURM_JOB_ID", "SLURM_JOBID"]).ok_or(JobError::NoJob)?;
        let id = number(&what, &value)?;
        let (what, list) = either(["SLURM_JOB_NODELIST", "SLURM_NODELIST"]).ok_or_else(|| JobError::Wrong {
            what: "SLURM_JOB_NODELIST".into(),
            value: String::new(),
            why: "a job has nodes; is this an allocation that was revoked?".into(),
        })?;
        let mut nodes = expand(&what, &list)?;
        let optional = |name: &str| get(name).map(|value| number(name, &value)).transpose();
        let array = optional("SLURM_ARRAY_JOB_ID")?.zip(optional("SLURM_ARRAY_TASK_ID")?);
        let mut groups = vec![];
        for group in 0..optional("SLURM_HET_SIZE")?.unwrap_or(0).min(MOST_GROUPS) {
            let (id, list) =
                (format!("SLURM_JOB_ID_HET_GROUP_{group}"), format!("SLURM_JOB_NODELIST_HET_GROUP_{group}"));
            let (Some(number_), Some(text)) = (optional(&id)?, get(&list)) else { continue };
            groups.push(Group { id: number_, nodes: expand(&list, &text)? });
        }
        if !groups.is_empty() {
            nodes = once(groups.iter().flat_map(|group| group.nodes.iter().cloned()));
        }
        let end = get("SLURM_JOB_END_TIME").and_then(|text| text.parse::<u64>().ok());
        Ok(Self {
            id,
            user: optional("SLURM_JOB_UID")?,
            restarts: optional("SLURM_RESTART_COUNT")?.unwrap_or(0),
            nodes,
            array,
            groups,
            directory: get("SLURM_SUBMIT_DIR").map(PathBuf::from),
            left: end.map(|end| Duration::from_secs(end.saturating_sub(now))),
        })
    }

    /// The job in the output of `scontrol --oneliner show job ID`; one line a component of a het
    /// job.
    ///
    /// # Errors
    /// It does not run, or a field is wrong.
    pub fn from_scontrol(output: &str) -> Result<Self, JobError> {
        let mut components = vec![];
        for line in output.lines().filter(|line| line.trim_start().starts_with("JobId=")) {
            components.push(component(&fields(line))?);
        }
        let mut components = components.into_iter();
        let Some(mut job) = components.next() else { return Err(JobError::NoJob) };
        let more: Vec<Self> = components.collect();
        if !more.is_empty() {
            let all = [&job].into_iter().chain(&more);
            let groups: Vec<Group> = all.map(|part| Group { id: part.id, nodes: part.nodes.clone() }).collect();
            job.nodes = once(groups.iter().flat_map(|group| group.nodes.iter().cloned()));
            job.groups = groups;
        }
        Ok(job)
    }

    /// Names this start of the job: `4711`, after a requeue `4711.r1`.
    #[must_use]
    pub fn run_name(&self) -> String {
        if self.restarts == 0 { self.id.to_string() } else { format!("{}.r{}", self.id, self.restarts) }
    }

    /// Every id that processes of this job may have in their environment: its own and its
    /// components'.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        let mut ids: Vec<u32> = [self.id].into_iter().chain(self.groups.iter().map(|group| group.id)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.iter().map(u32::to_string).collect()
    }

    /// Labels of the agent on `node`.
    #[must_use]
    pub fn labels(&self, node: &str) -> Vec<(String, String)> {
        let mut labels = vec![("job".to_owned(), self.id.to_string())];
        let mut add = |name: &str, value: String| labels.push((name.to_owned(), value));
        if self.restarts > 0 {
            add("restart", self.restarts.to_string());
        }
        if let Some((array, task)) = self.array {
            add("array_job", array.to_string());
            add("array_task", task.to_string());
        }
        if let Some(group) = self.groups.iter().position(|group| group.nodes.iter().any(|name| name == node)) {
            add("het_job", self.id.to_string());
            add("het_group", group.to_string());
        }
        labels
    }
}

fn number(what: &str, value: &str) -> Result<u32, JobError> {
    value.parse().map_err(|_| JobError::Wrong {
        what: what.to_owned(),
        value: value.chars().take(80).collect(),
        why: "that is not a number Slurm gives".to_owned(),
    })
}

fn expand(what: &str, list: &str) -> Result<Vec<String>, JobError> {
    let names = hostlist::expand(list).map_err(|error| JobError::Nodes { what: what.to_owned(), error })?;
    Ok(once(names))
}

/// Each name once, at its first position.
fn once(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    names.into_iter().filter(|name| seen.insert(name.clone())).collect()
}

/// `Name=value` words of a line; a word without '=' goes on with the value before it.
fn fields(line: &str) -> HashMap<String, String> {
    let mut fields = HashMap::new();
    let mut last: Option<String> = None;
    for word in line.split_whitespace() {
        match (word.split_once('='), &last) {
            (Some((name, value)), _) => {
                // the first of a name counts: `Command=` and comments may contain anything
                fields.entry(name.to_owned()).or_insert_with(|| value.to_owned());
                last = Some(name.to_owned());
            }
            (None, Some(name)) => {
                if let Some(value) = fields.get_mut(name) {
                    value.push(' ');
                    value.push_str(word);
                }
            }
            (None, None) => {}
        }
    }
    fields
}

fn component(fields: &HashMap<String, String>) -> Result<Job, JobError> {
    let get = |name: &str| fields.get(name).map(String::as_str).filter(|value| !value.is_empty() && *value != "(null)");
    let optional = |name: &str| get(name).map(|value| number(name, value)).transpose();
    let state = get("JobState").unwrap_or("unknown");
    if state != "RUNNING" {
        return Err(JobError::Wrong {
            what: "JobState".into(),
            value: state.to_owned(),
            why: "only a running job has nodes to start agents on".into(),
        });
    }
    let nodes = expand("NodeList", get("NodeList").unwrap_or_default())?;
    let array = match (optional("ArrayJobId")?, get("ArrayTaskId").and_then(|task| task.parse().ok())) {
        (Some(array), Some(task)) => Some((array, task)),
        _ => None,
    };
    let left = match (get("TimeLimit").and_then(duration), get("RunTime").and_then(duration)) {
        (Some(limit), Some(run)) => Some(limit.saturating_sub(run)),
        _ => None,
    };
    Ok(Job {
        id: number("JobId", get("JobId").unwrap_or_default())?,
        user: get("UserId").and_then(|user| user.strip_suffix(')')?.rsplit_once('(')?.1.parse().ok()),
        restarts: optional("Restarts")?.unwrap_or(0),
        nodes,
        array,
        groups: vec![],
        directory: get("WorkDir").map(PathBuf::from),
        left,
    })
}

/// `[days-]hours:minutes:seconds`; `UNLIMITED` is none.
fn duration(text: &str) -> Option<Duration> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds = 0u64;
    for part in clock.split(':') {
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    Some(Duration::from_secs(days.parse::<u64>().ok()?.checked_mul(86_400)?.checked_add(seconds)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Job, JobError> {
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Job::from_variables(&get, 1_000)
    }

    #[test]
    fn a_batch_script_sees_its_job() {
        let job = read(&[
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_JOB_NODELIST", "n[1-3]"),
            ("SLURM_SUBMIT_DIR", "/home/ada"),
            ("SLURM_ARRAY_JOB_ID", "4700"),
            ("SLURM_ARRAY_TASK_ID", "11"),
            ("SLURM_RESTART_COUNT", "2"),
            ("SLURM_JOB_END_TIME", "4600"),
        ])
        .unwrap();
        assert_eq!((job.id, job.nodes.len(), job.run_name().as_str()), (4711, 3, "4711.r2"));
        assert_eq!(job.left, Some(Duration::from_secs(3600)));
        let labels = job.labels("n2");
        let label = |name: &str| labels.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        assert_eq!((label("job"), label("array_job"), label("array_task")), (Some("4711"), Some("4700"), Some("11")));
        assert_eq!((label("restart"), label("het_group")), (Some("2"), None));
    }

    #[test]
    fn a_het_job_has_the_nodes_of_its_groups() {
        let job = read(&[
            ("SLURM_JOB_ID", "10"),
            ("SLURM_JOB_NODELIST", "a1"),
            ("SLURM_HET_SIZE", "2"),
            ("SLURM_JOB_ID_HET_GROUP_0", "10"),
            ("SLURM_JOB_NODELIST_HET_GROUP_0", "a1"),
            ("SLURM_JOB_ID_HET_GROUP_1", "11"),
            ("SLURM_JOB_NODELIST_HET_GROUP_1", "b[1-2]"),
        ])
        .unwrap();
        assert_eq!(job.nodes, ["a1", "b1", "b2"]);
        assert_eq!(job.ids(), ["10", "11"]);
        assert!(job.labels("b2").contains(&("het_group".into(), "1".into())));
    }

    #[test]
    fn outside_a_job_it_says_what_to_do() {
        assert!(matches!(read(&[]), Err(JobError::NoJob)));
        assert!(matches!(read(&[("SLURM_JOB_ID", "7")]), Err(JobError::Wrong { .. })));
        assert!(matches!(read(&[("SLURM_JOB_ID", "x"), ("SLURM_JOB_NODELIST", "n1")]), Err(JobError::Wrong { .. })));
        assert!(matches!(read(&[("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[")]), Err(JobError::Nodes { .. })));
    }

    const SHOWN: &str = "JobId=12 JobName=a b=c UserId=ada(1000) JobState=RUNNING Reason=None Restarts=1 \
        RunTime=00:10:00 TimeLimit=1-00:30:00 NodeList=n[1-2] BatchHost=n1 WorkDir=/home/ada/run 1 Power=";

    #[test]
    fn scontrol_tells_the_same() {
        let job = Job::from_scontrol(SHOWN).unwrap();
        assert_eq!((job.id, job.restarts, job.nodes.as_slice()), (12, 1, &["n1".to_owned(), "n2".to_owned()][..]));
        assert_eq!((job.left, job.user), (Some(Duration::from_secs(86_400 + 20 * 60)), Some(1000)));
        assert_eq!(job.directory, Some(PathBuf::from("/home/ada/run 1")));
        let pending = SHOWN.replace("RUNNING", "PENDING");
        assert!(Job::from_scontrol(&pending).unwrap_err().to_string().contains("PENDING"));
        assert_eq!(Job::from_scontrol(&SHOWN.replace("1-00:30:00", "UNLIMITED")).unwrap().left, None);
        let het = format!("{SHOWN}\n{}", SHOWN.replace("JobId=12", "JobId=13").replace("n[1-2]", "m7"));
        let het = Job::from_scontrol(&het).unwrap();
        assert_eq!((het.nodes.len(), het.groups.len(), het.ids().len()), (3, 2, 2));
    }

    proptest! {
        #[test]
        fn any_output_reads_without_harm(text in "(JobId=|JobState=RUNNING |NodeList=|Restarts=|TimeLimit=|[0-9:-]{0,25}|[a-z\\[\\] \n]){0,30}") {
            let _ = Job::from_scontrol(&text);
        }
    }
}
