/*
 * CuratorPeer - locks of Apache Curator, driven by lines. The protocol is described at the
 * head of test/perl/ZkPeers.pm.
 *
 *		java CuratorPeer HOSTS SESSION_TIMEOUT_MS
 *
 * Kinds: mutex, revocable (a mutex that is given up when somebody asks for it), read, write
 * (both of one InterProcessReadWriteLock, so that one id can hold both), semaphore,
 * semaphoremutex, and multi: all of several paths, with commas between them.
 *
 * Copyright (c) 2026, zklock developers
 */
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.RetryForever;

public class CuratorPeer
{
	static CuratorFramework client;

	static synchronized void say(String id, String what, String rest)
	{
		System.out.println(id + "\t" + what + (rest.isEmpty() ? "" : "\t" + rest));
		System.out.flush();
	}

	static String base(String path)
	{
		return path.substring(path.lastIndexOf('/') + 1);
	}

	/* Curator's owner of a lock is a thread: so is each id. */
	static class Id extends Thread
	{
		final String id;
		final BlockingQueue<String[]> commands = new LinkedBlockingQueue<>();
		final Map<String, InterProcessReadWriteLock> shared = new HashMap<>();
		final Deque<AutoCloseable> held = new ArrayDeque<>();
		final Deque<String> kinds = new ArrayDeque<>();

		Id(String id)
		{
			this.id = id;
			setDaemon(true);
			start();
		}

		InterProcessMutex lock(String kind, String path) throws Exception
		{
			switch (kind)
			{
				case "mutex":
					return new InterProcessMutex(client, path);
				case "revocable":
					InterProcessMutex mutex = new InterProcessMutex(client, path);
					mutex.makeRevocable(m -> {
						say(id, "asked", "");
						commands.add(new String[] { id, "release" });
					});
					return mutex;
				case "read":
					return shared.computeIfAbsent(path, p -> new InterProcessReadWriteLock(client, p)).readLock();
				case "write":
					return shared.computeIfAbsent(path, p -> new InterProcessReadWriteLock(client, p)).writeLock();
			}
			throw new IllegalArgumentException("no such kind: " + kind);
		}

		/* protected in some versions, public in others */
		String node(InterProcessMutex lock) throws Exception
		{
			Method method = InterProcessMutex.class.getDeclaredMethod("getLockPath");

			method.setAccessible(true);
			return base((String) method.invoke(lock));
		}

		void acquire(String kind, String path, String leases) throws Exception
		{
			if (kind.equals("semaphore"))
			{
				InterProcessSemaphoreV2 semaphore = new InterProcessSemaphoreV2(client, path, Integer.parseInt(leases));
				Lease lease = semaphore.acquire();

				held.push(() -> semaphore.returnLease(lease));
				kinds.push(kind);
				say(id, "acquired", base(lease.getNodeName()));
				return;
			}
			if (kind.equals("semaphoremutex") || kind.equals("multi"))
			{
				InterProcessLock other = kind.equals("multi")
					? new InterProcessMultiLock(client, Arrays.asList(path.split(",")))
					: new InterProcessSemaphoreMutex(client, path);

				other.acquire();
				held.push(() -> other.release());
				kinds.push(kind);
				say(id, "acquired", "-");	/* they do not tell */
				return;
			}
			InterProcessMutex lock = lock(kind, path);

			lock.acquire();
			held.push(() -> lock.release());
			kinds.push(kind);
			say(id, "acquired", node(lock));
		}

		/* the last one, or the last one of that kind */
		void release(String kind) throws Exception
		{
			Deque<AutoCloseable> others = new ArrayDeque<>();
			Deque<String> otherKinds = new ArrayDeque<>();

			while (!kinds.isEmpty() && kind != null && !kinds.peek().equals(kind))
			{
				others.push(held.pop());
				otherKinds.push(kinds.pop());
			}
			if (kinds.isEmpty())
				throw new IllegalStateException("not held");
			AutoCloseable lock = held.pop();

			kinds.pop();
			while (!others.isEmpty())
			{
				held.push(others.pop());
				kinds.push(otherKinds.pop());
			}
			lock.close();
			say(id, "released", "");
		}

		void participants(String kind, String path) throws Exception
		{
			Collection<String> nodes = kind.equals("semaphore")
				? new InterProcessSemaphoreV2(client, path, 1).getParticipantNodes()
				: lock(kind, path).getParticipantNodes();
			StringBuilder names = new StringBuilder();

			for (String node : nodes)
				names.append(names.length() > 0 ? "\t" : "").append(base(node));
			say(id, "participants", names.toString());
		}

		@Override
		public void run()
		{
			for (;;)
			{
				try
				{
					String[] c = commands.take();

					switch (c[1])
					{
						case "acquire":
							acquire(c[2], c[3], c.length > 4 ? c[4] : "1");
							break;
						case "release":
							release(c.length > 2 ? c[2] : null);
							break;
						case "participants":
							participants(c[2], c[3]);
							break;
						case "revoke":
							Revoker.attemptRevoke(client, c[2]);
							say(id, "revoked", "");
							break;
						default:
							say(id, "error", "no such command");
					}
				}
				catch (Exception e)
				{
					say(id, "error", e.toString().replaceAll("\\s+", " "));
				}
			}
		}
	}

	public static void main(String[] args) throws Exception
	{
		int timeout = Integer.parseInt(args[1]);
		Map<String, Id> ids = new HashMap<>();
		BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
		String line;

		client = CuratorFrameworkFactory.newClient(args[0], timeout, timeout, new RetryForever(100));
		client.start();
		client.blockUntilConnected();
		say("-", "ready", "");
		while ((line = in.readLine()) != null)
		{
			String[] c = line.split("\t");

			ids.computeIfAbsent(c[0], Id::new).commands.add(c);
		}
		client.close();
		Runtime.getRuntime().halt(0);
	}
}
