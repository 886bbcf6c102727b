! As mpi_comms.c, in Fortran, with three communicators.
program comms
  use mpi
  implicit none
  integer :: error, world_rank, half, copy
  integer :: made = 0
  logical :: go_on
  character(len=1024) :: path
  double precision :: in(4096), out(4096)
  in = 1
  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, world_rank, error)
  call use_it('world', 100, MPI_COMM_WORLD)
  call MPI_Comm_split(MPI_COMM_WORLD, mod(world_rank, 2), -world_rank, half, error)
  call use_it('split', 101, half)
  call MPI_Comm_dup(half, copy, error)
  call use_it('dup', 102, copy)
  call MPI_Comm_dup(MPI_COMM_WORLD, copy, error)
  call use_it('dup', 103, copy)
  print '(a,i0)', 'done ', getpid()
  flush (6)
  call get_command_argument(1, path)
  go_on = .false.
  do while (.not. go_on)
    inquire (file=trim(path), exist=go_on)
    if (.not. go_on) call execute_command_line('sleep 0.05')
  end do
  call MPI_Finalize(error)
contains
  subroutine use_it(name, label, comm)
    character(len=*), intent(in) :: name
    integer, intent(in) :: label, comm
    integer :: rank, ranks, id, i
    do i = 1, 5
      call MPI_Allreduce(in, out, label, MPI_DOUBLE_PRECISION, MPI_SUM, comm, error)
      if (i == 3) call MPI_Barrier(comm, error)
    end do
    call MPI_Comm_rank(comm, rank, error)
    call MPI_Comm_size(comm, ranks, error)
    id = world_rank * 1000 + made
    call MPI_Bcast(id, 1, MPI_INTEGER, 0, comm, error)
    made = made + 1
    print '(a,i0,3a,i0,a,i0,a,i0,a,i0,a)', '{"pid":', getpid(), ',"name":"', name, '","label":', label, ',"rank":', rank, &
      ',"size":', ranks, ',"id":', id, '}'
    flush (6)
  end subroutine
end program
