/*
 * EtcdBench - lock and unlock with etcd's lock service, for bench/run.
 *
 *		java EtcdBench PORT SECONDS WARM_UP
 *
 * One client, through the JSON gateway of etcd's API v3, over one connection that stays
 * open, with one lease for all. HTTP is spoken by hand: a library would cost more than
 * what is measured. Prints what Cycles says.
 *
 * Copyright (c) 2026, zklock developers
 */
import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class EtcdBench
{
	private static Socket socket;
	private static InputStream in;

	public static void main(String[] args) throws Exception
	{
		socket = new Socket("127.0.0.1", Integer.parseInt(args[0]));
		socket.setTcpNoDelay(true);
		in = new BufferedInputStream(socket.getInputStream());

		String lease = field("ID", post("/v3/lease/grant", "{\"TTL\": 3600}"));
		String lock = "{\"name\": \"" + Base64.getEncoder().encodeToString("bench".getBytes()) + "\", \"lease\": \"" + lease + "\"}";
		Cycles.Cycle cycle = () -> {
			String key = field("key", post("/v3/lock/lock", lock));
			post("/v3/lock/unlock", "{\"key\": \"" + key + "\"}");
		};

		Cycles.measure(new Cycles.Cycle[] {cycle}, Double.parseDouble(args[1]), Double.parseDouble(args[2]));
	}

	private static String post(String path, String body) throws IOException
	{
		socket.getOutputStream().write(("POST " + path + " HTTP/1.1\r\nHost: etcd\r\nContent-Type: application/json\r\nContent-Length: "
										+ body.length() + "\r\n\r\n" + body).getBytes(StandardCharsets.US_ASCII));

		String status = line(), header;
		int length = 0;
		while (!(header = line().toLowerCase()).isEmpty())
		{
			if (header.startsWith("content-length:"))
				length = Integer.parseInt(header.substring(15).trim());
			else if (header.startsWith("transfer-encoding:"))
				throw new IOException("not expected: " + header);
		}
		String answer = new String(in.readNBytes(length), StandardCharsets.US_ASCII);
		if (!status.contains(" 200 "))
			throw new IOException(path + ": " + status + ": " + answer);
		return answer;
	}

	private static String line() throws IOException
	{
		StringBuilder line = new StringBuilder();
		int c;

		while ((c = in.read()) != '\n')
		{
			if (c < 0)
				throw new IOException("etcd has closed the connection");
			if (c != '\r')
				line.append((char) c);
		}
		return line.toString();
	}

	private static String field(String name, String json) throws IOException
	{
		Matcher m = Pattern.compile("\"" + name + "\":\"([^\"]*)\"").matcher(json);

		if (!m.find())
			throw new IOException("no " + name + " in " + json);
		return m.group(1);
	}
}
