//! Slurm's own commands, as this program calls them.

use std::process::Command;

/// A Slurm command without the options that variables of the surrounding job or step would give it
/// (SLURM_NTASKS, SLURM_CPUS_PER_TASK, SLURM_EXACT … are read as options by srun), and without what
/// is meant for ranks.
pub fn plain(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let of_slurm = ["SLURM_", "SRUN_", "SBATCH_", "SALLOC_", "PMIX_", "PMI_", "OMPI_"];
        let keep = ["SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CLUSTER_NAME"];
        if (of_slurm.iter().any(|prefix| text.starts_with(prefix)) && !keep.contains(&text.as_ref()))
            || text == "LD_PRELOAD"
        {
            command.env_remove(&name);
        }
    }
    command
}
