-- Slurm job_submit plugin: which jobs get a mesh of their own where the Prolog beside this file gives one to all.
-- With JobSubmitPlugins=lua in slurm.conf, and this file as job_submit.lua in slurm.conf's folder.
-- A job of one task has nobody to be compared with: it gets none, unless its comment says rankmesh=on. What a comment says of
-- rankmesh already is left as it is. Nothing here refuses a job.

local function of_one_task(job)
  local function is_one(n) return n == nil or n <= 1 or n == slurm.NO_VAL or n == slurm.NO_VAL16 end
  return is_one(job.num_tasks) and is_one(job.min_nodes) and is_one(job.ntasks_per_node)
end

local function decide(job)
  local comment = job.comment or ""
  if not comment:find("rankmesh=", 1, true) and of_one_task(job) then
    job.comment = comment == "" and "rankmesh=off" or comment .. " rankmesh=off"
  end
end

function slurm_job_submit(job, _partitions, _uid)
  -- A fault of this script is no reason to hold jobs up.
  local ok, why = pcall(decide, job)
  if not ok then
    slurm.log_error("rankmesh: job_submit.lua: %s", tostring(why))
  end
  return slurm.SUCCESS
end

function slurm_job_modify(_job, _record, _partitions, _uid)
  return slurm.SUCCESS
end
