/*
 * CuratorBench - acquire and release Apache Curator's InterProcessMutex, for bench/run.
 *
 *		java CuratorBench HOSTS own|one THREADS SECONDS WARM_UP
 *
 * One client, as in one application; each thread has a mutex object of its own, on a path
 * of its own or all on one. Prints what Cycles says.
 *
 * Copyright (c) 2026, zklock developers
 */
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;

public class CuratorBench
{
	public static void main(String[] args) throws Exception
	{
		CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], 10000, 10000, new RetryForever(100));
		Cycles.Cycle[] cycles = new Cycles.Cycle[Integer.parseInt(args[2])];

		client.start();
		client.blockUntilConnected();
		for (int i = 0; i < cycles.length; i++)
		{
			InterProcessMutex mutex = new InterProcessMutex(client, "/curator/l" + (args[1].equals("own") ? i : "ock"));

			cycles[i] = () -> {
				mutex.acquire();
				mutex.release();
			};
		}
		Cycles.measure(cycles, Double.parseDouble(args[3]), Double.parseDouble(args[4]));
	}
}
