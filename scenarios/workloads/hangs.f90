! Programs that hang, in Fortran: mpirun -n 4 hangs-f MODE DIRECTORY. As hangs.c, which says what the table and the notes mean.
!
! truth: order            differs=2        collectives in another order
! truth: one-more         differs=0        one barrier more than the others
! truth: first-barrier    cause=3          asleep; nobody has called the function before
! truth: busy             cause=0          computes; the root of a broadcast
! truth: split            cause=1          asleep; its partner of a split communicator waits, and the others for both
! truth: cart             cause=3          computes; columns of a grid
! truth: wrong-tag        circle=2>3       a receive with another tag than what is sent
! truth: ssend-ring       circle=0>1>2>3   everybody sends, synchronously, and nobody receives
! truth: irecv            cause=0          asleep; a receive that was begun waits for its message
! truth: iallreduce       cause=2          asleep; a nonblocking reduction
! truth: split-making     cause=1          computes, where the others make a communicator
#define AT(what) call note(what, __LINE__)
program hangs
  use mpi
  use iso_c_binding, only: c_int
  implicit none
  interface
    integer(c_int) function usleep(microseconds) bind(c)
      import c_int
      integer(c_int), value :: microseconds
    end function usleep
  end interface
  character(len=64) :: mode
  character(len=1024) :: directory
  integer :: rank, ranks, ierror, i, half, grid, line_of_grid, request, next, previous, i_slept
  integer :: status(MPI_STATUS_SIZE)
  double precision :: a(64), b(64), wide(256)

  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierror)
  call get_command_argument(1, mode)
  call get_command_argument(2, directory)
  next = modulo(rank + 1, ranks)
  previous = modulo(rank - 1, ranks)
  a = 1
  AT('begins')
  do i = 1, 40
    call MPI_Allreduce(a, b, 64, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierror)
    i_slept = usleep(10000)
  end do

  select case (trim(mode))
  case ('order')
    if (rank == 2) then
      AT('all_gather'); call MPI_Allgather(a, 64, MPI_DOUBLE_PRECISION, wide, 64, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, ierror)
      AT('barrier'); call MPI_Barrier(MPI_COMM_WORLD, ierror)
    else
      AT('barrier'); call MPI_Barrier(MPI_COMM_WORLD, ierror)
      AT('all_gather'); call MPI_Allgather(a, 64, MPI_DOUBLE_PRECISION, wide, 64, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, ierror)
    end if
  case ('one-more')
    do i = 1, merge(6, 5, rank == 0)
      AT('barrier'); call MPI_Barrier(MPI_COMM_WORLD, ierror)
    end do
    AT('all_reduce'); call MPI_Allreduce(a, b, 64, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierror)
  case ('first-barrier')
    if (rank == 3) call sleep_on()
    AT('barrier'); call MPI_Barrier(MPI_COMM_WORLD, ierror)
  case ('busy')
    if (rank == 0) call compute()
    AT('broadcast'); call MPI_Bcast(b, 64, MPI_DOUBLE_PRECISION, 0, MPI_COMM_WORLD, ierror)
  case ('split')
    call MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, half, ierror)
    do i = 1, 20
      call MPI_Allreduce(a, b, 64, MPI_DOUBLE_PRECISION, MPI_SUM, half, ierror)
    end do
    if (rank == 1) call sleep_on()
    AT('all_reduce'); call MPI_Allreduce(a, b, 64, MPI_DOUBLE_PRECISION, MPI_SUM, half, ierror)
    AT('barrier'); call MPI_Barrier(MPI_COMM_WORLD, ierror)
  case ('cart')
    call MPI_Cart_create(MPI_COMM_WORLD, 2, [2, 2], [.false., .false.], .false., grid, ierror)
    call MPI_Cart_sub(grid, [.true., .false.], line_of_grid, ierror)
    do i = 1, 20
      call MPI_Allreduce(a, b, 64, MPI_DOUBLE_PRECISION, MPI_SUM, line_of_grid, ierror)
    end do
    if (rank == 3) call compute()
    AT('barrier'); call MPI_Barrier(line_of_grid, ierror)
    AT('barrier'); call MPI_Barrier(grid, ierror)
  case ('wrong-tag')
    if (rank == 3) call MPI_Send(a, 64, MPI_DOUBLE_PRECISION, 2, 8, MPI_COMM_WORLD, ierror)
    if (rank == 2) then
      AT('recv'); call MPI_Recv(b, 64, MPI_DOUBLE_PRECISION, 3, 7, MPI_COMM_WORLD, status, ierror)
    end if
    AT('barrier'); call MPI_Barrier(MPI_COMM_WORLD, ierror)
  case ('ssend-ring')
    AT('ssend'); call MPI_Ssend(a, 64, MPI_DOUBLE_PRECISION, next, 0, MPI_COMM_WORLD, ierror)
    AT('recv'); call MPI_Recv(b, 64, MPI_DOUBLE_PRECISION, previous, 0, MPI_COMM_WORLD, status, ierror)
  case ('irecv')
    if (rank == 0) call sleep_on()
    if (rank == 1) then
      call MPI_Irecv(b, 64, MPI_DOUBLE_PRECISION, 0, 0, MPI_COMM_WORLD, request, ierror)
      AT('wait'); call MPI_Wait(request, status, ierror)
    end if
    AT('barrier'); call MPI_Barrier(MPI_COMM_WORLD, ierror)
  case ('iallreduce')
    if (rank == 2) call sleep_on()
    call MPI_Iallreduce(a, b, 64, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, request, ierror)
    AT('wait'); call MPI_Wait(request, status, ierror)
  case ('split-making')
    if (rank == 1) call compute()
    AT('comm_split'); call MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, half, ierror)
  case default
    write (0, *) 'hangs-f: no mode ', trim(mode)
    call exit(2)
  end select
  AT('through')
  call MPI_Finalize(ierror)

contains

  subroutine note(what, line)
    character(len=*), intent(in) :: what
    integer, intent(in) :: line
    character(len=1100) :: path
    integer :: unit
    write (path, '(a, "/at.", i0)') trim(directory), rank
    open (newunit=unit, file=trim(path)//'.new', status='replace')
    write (unit, '(a, " hangs.f90:", i0, " ", i0)') what, line, getpid()
    close (unit)
    call rename(trim(path)//'.new', trim(path))
  end subroutine note

  subroutine sleep_on()
    AT('asleep'); call sleep(3600)
  end subroutine sleep_on

  subroutine compute()
    double precision, volatile :: x
    x = 0
    AT('running'); do while (x < 1); x = x * 0.5d0; end do
  end subroutine compute
end program hangs
