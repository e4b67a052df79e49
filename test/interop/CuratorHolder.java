/*
 * CuratorHolder - one client with Apache Curator's InterProcessMutex, for test/overlap.
 *
 *		java CuratorHolder HOSTS SESSION_TIMEOUT_MS PATH
 *
 * Acquires the lock, keeps it, and says all the time what it believes. All times are
 * milliseconds of the wall clock:
 *
 *		state TIME CONNECTED|SUSPENDED|RECONNECTED|LOST		from the state listener
 *		acquired TIME										acquire() returned
 *		believes TIME true|false							every 20 ms from then on:
 *															isAcquiredInThisProcess()
 *
 * Ends when standard input does.
 *
 * Copyright (c) 2026, zklock developers
 */
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;

public class CuratorHolder
{
	static synchronized void say(String what, Object value)
	{
		System.out.println(what + " " + System.currentTimeMillis() + " " + value);
		System.out.flush();
	}

	public static void main(String[] args) throws Exception
	{
		int timeout = Integer.parseInt(args[1]);
		CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], timeout, timeout, new RetryForever(100));

		client.getConnectionStateListenable().addListener((c, state) -> say("state", state));
		client.start();
		Thread ender = new Thread(() -> {
			try
			{
				while (System.in.read() >= 0)
					;
			}
			catch (java.io.IOException e)
			{
			}
			Runtime.getRuntime().halt(0);
		});
		ender.setDaemon(true);
		ender.start();

		InterProcessMutex mutex = new InterProcessMutex(client, args[2]);
		mutex.acquire();
		say("acquired", "");
		for (;;)
		{
			say("believes", mutex.isAcquiredInThisProcess());
			Thread.sleep(20);
		}
	}
}
