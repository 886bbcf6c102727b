// How a build script makes nccl-sim and its workload, to embed them in a binary:
//
//     #[path = "../scenarios/nccl-sim/build_support.rs"]
//     mod nccl_sim;
//     // in main(): nccl_sim::build(Path::new("../scenarios"), &out_dir)?;
//     // in the crate: include_bytes!(concat!(env!("OUT_DIR"), "/libnccl.so.2")) and "/nccl-ranks"
//
// Written side by side into one directory the two find each other (rpath $ORIGIN). Needs a C
// compiler, nothing else.

use std::path::Path;
use std::process::Command;

/// Compiles libnccl.so.2 and nccl-ranks from `scenarios_dir` into `out_dir` and tells cargo what to
/// watch.
pub(crate) fn build(scenarios_dir: &Path, out_dir: &Path) -> Result<(), String> {
    let sim = scenarios_dir.join("nccl-sim");
    let workloads = scenarios_dir.join("workloads");
    println!("cargo:rerun-if-changed={}", sim.display());
    println!("cargo:rerun-if-changed={}", workloads.display());
    println!("cargo:rerun-if-changed={}", scenarios_dir.join("cudart-sim").display());
    println!("cargo:rerun-if-env-changed=CC");
    println!("cargo:rerun-if-env-changed={}", target_cc());
    let library = out_dir.join("libnccl.so.2");
    let mut cc = compiler();
    cc.args(["-fPIC", "-fvisibility=hidden", "-shared", "-Wl,-soname,libnccl.so.2", "-o"]).arg(&library);
    cc.args(["comm.c", "coll.c", "enqueue.c", "hash.c", "run.c", "shm.c", "reduce.c"].map(|file| sim.join(file)));
    cc.args(["-lpthread", "-lrt", "-lm", "-ldl"]);
    run(cc)?;
    let mut cc = compiler();
    cc.arg("-I").arg(&sim).arg("-I").arg(scenarios_dir.join("cudart-sim"));
    cc.arg("-o").arg(out_dir.join("nccl-ranks"));
    cc.args(["nccl-ranks.c", "shape.c", "gpu.c"].map(|file| workloads.join(file)));
    cc.arg(&library).args(["-Wl,-rpath,$ORIGIN", "-ldl"]);
    run(cc)
}

/// The variable that names the target's compiler, as the `cc` crate reads it.
fn target_cc() -> String {
    format!("CC_{}", std::env::var("TARGET").unwrap_or_default().replace('-', "_"))
}

fn compiler() -> Command {
    let named = std::env::var_os(target_cc()).or_else(|| std::env::var_os("CC"));
    let mut cc = Command::new(named.unwrap_or_else(|| "cc".into()));
    cc.args(["-std=gnu11", "-O2", "-s"]);
    cc
}

fn run(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("no C compiler ({e}): install gcc or set CC"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr)))
}
