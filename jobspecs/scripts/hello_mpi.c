/* Copyright (c) The Muster Authors
 * SPDX-License-Identifier: MPL-2.0
 *
 * A small MPI program: all processes add up their ranks, again and again. Build it with `mpicc -o hello_mpi hello_mpi.c`.
 * Usage: hello_mpi ROUNDS SECONDS_PER_ROUND
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
    int rank, size, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int rounds = argc > 1 ? atoi(argv[1]) : 10;
    double seconds = argc > 2 ? atof(argv[2]) : 0.1;
    struct timespec pause = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};

    printf("rank %d of %d starts\n", rank, size);
    fflush(stdout);
    for (int round = 0; round < rounds; round++) {
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        nanosleep(&pause, NULL);
    }
    if (rank == 0) printf("sum of %d ranks: %d\n", size, sum);
    MPI_Finalize();
    return sum == size * (size - 1) / 2 || rounds == 0 ? 0 : 1;
}
