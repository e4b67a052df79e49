/*
 * Cycles - run lock cycles in threads and say how many and how long: the part that
 * CuratorBench and EtcdBench share.
 *
 * Each thread does one cycle after the other. What ends within the time of measurement
 * counts, and what ends in the warm-up before it (for the JIT, and for the directories
 * and connections) does not. Prints what every peer prints, latencies in microseconds:
 *
 *		CYCLES_PER_SECOND MEDIAN P99
 *
 * Copyright (c) 2026, zklock developers
 */
import java.util.Arrays;

public class Cycles
{
	interface Cycle
	{
		void run() throws Exception;
	}

	static void measure(Cycle[] cycles, double seconds, double warmUp) throws Exception
	{
		long from = System.nanoTime() + (long) (warmUp * 1e9), to = from + (long) (seconds * 1e9);
		long[][] took = new long[cycles.length][];
		Thread[] threads = new Thread[cycles.length];

		for (int t = 0; t < threads.length; t++)
		{
			int me = t;

			threads[t] = new Thread(() -> {
				try
				{
					took[me] = repeat(cycles[me], from, to);
				}
				catch (Exception e)
				{
					e.printStackTrace();
					Runtime.getRuntime().halt(1);
				}
			});
			threads[t].start();
		}
		for (Thread thread : threads)
			thread.join();

		long[] all = Arrays.stream(took).flatMapToLong(Arrays::stream).sorted().toArray();
		if (all.length == 0)
			throw new Exception("no cycle ended in time");
		System.out.printf("%.2f %.1f %.1f%n", all.length / seconds, all[all.length / 2] / 1e3,
						  all[(int) (all.length * 0.99)] / 1e3);
		System.out.flush();
		/* clients and their threads go with the process */
		Runtime.getRuntime().halt(0);
	}

	private static long[] repeat(Cycle cycle, long from, long to) throws Exception
	{
		long[] took = new long[1024];
		int n = 0;

		for (long start = System.nanoTime(); start < to;)
		{
			cycle.run();
			long end = System.nanoTime();
			if (end >= from && end < to)
			{
				if (n == took.length)
					took = Arrays.copyOf(took, 2 * n);
				took[n++] = end - start;
			}
			start = end;
		}
		return Arrays.copyOf(took, n);
	}
}
