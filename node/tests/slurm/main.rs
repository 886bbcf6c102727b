//! `rankmesh slurm` on real Slurm: a cluster of virtual nodes on this machine. Needs root,
//! slurm-wlm and munge. Here is what all of these tests use.

#[path = "../common/mod.rs"]
mod common;

mod accounting;
mod ends;
mod site;
mod verdicts;

use common::slurm::Slurm;
use common::{stderr, stdout};
use serde_json::Value;

/// Nodes that share a host name share no memory segments: MPI over TCP.
const MPI: &str = "export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_mpi_yield_when_idle=1";

fn json(output: &std::process::Output) -> Result<Value, String> {
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {}{}", stdout(output), stderr(output)))
}

/// The rank that a verdict names.
fn named(slurm: &Slurm, job: u32) -> Result<Value, String> {
    let job = job.to_string();
    let answer = json(&slurm.rankmesh(&["stragglers", "--job", &job, "--format", "json"]))?;
    if answer["verdict"]["kind"] == "rank" {
        return Ok(answer["verdict"].clone());
    }
    // what was recorded, for whoever reads why the test failed
    let sql = "SELECT node, pid, rank, func, comm_hash, nranks, count(*), min(seq), max(seq), min(start_ns), max(start_ns) \
               FROM collectives GROUP BY node, pid, rank, func, comm_hash, nranks ORDER BY rank";
    let recorded = slurm.rankmesh(&["query", "--job", &job, sql]);
    Err(format!("{}\n{}{}\n{}", answer["verdict"], stdout(&recorded), stderr(&recorded), answer["coverage"]))
}

/// Directory that `nobody` may write into.
fn of_nobody(slurm: &Slurm) -> std::path::PathBuf {
    let home = slurm.path("nobody");
    std::fs::create_dir(&home).expect("a directory");
    let nobody = nix::unistd::User::from_name("nobody").expect("users").expect("nobody");
    std::os::unix::fs::chown(&home, Some(nobody.uid.as_raw()), None).expect("chown");
    home
}
