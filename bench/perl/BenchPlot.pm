# BenchPlot - a line plot as SVG: what bench/run --plots writes.
#
#	BenchPlot::draw('file.svg', title => ..., x => 'backends', y => 'ms', at => [ 1, 2, 4 ],
#		lines => [ zklock => [ 0.5, 0.6, 0.9 ], Curator => [ ... ] ]);
#
# The values of x are spread evenly, since all of ours double; y is logarithmic. Each line
# has its name at its end.
#
# Copyright (c) 2026, zklock developers

package BenchPlot;

use strict;
use warnings;

use Carp;
use List::Util qw(max min);
use POSIX qw(ceil floor);

my ($width, $height, $left, $right, $top, $bottom) = (720, 420, 70, 90, 44, 50);
my @colours = ('#1f5fa8', '#c4561a', '#5b8a2d', '#7a4f9a');

sub draw
{
	my ($file, %plot) = @_;
	my @lines;
	for (my $i = 0; $i < @{ $plot{lines} }; $i += 2)
	{
		push @lines, { name => $plot{lines}[$i], y => $plot{lines}[ $i + 1 ], colour => $colours[ $i / 2 ] };
	}
	my @values = map { @{ $_->{y} } } @lines;
	# the axis goes from one of its ticks to another
	my @ticks = map { my $decade = 10**$_; map { $_ * $decade } 1, 2, 5 } -3 .. 7;
	my $low = max(grep { $_ <= min(@values) } @ticks);
	my $high = min(grep { $_ > max(@values) } @ticks);
	my $last = $#{ $plot{at} };
	my $px = sub { return $left + ($width - $left - $right) * $_[0] / $last; };
	my $py = sub { return $height - $bottom - ($height - $top - $bottom) * log($_[0] / $low) / log($high / $low); };
	my $middle = ($top + $height - $bottom) / 2;

	my @svg;
	push @svg, qq(<rect width="$width" height="$height" fill="#fff"/>);
	push @svg, _text($width / 2, 24, 'middle', $plot{title}, 'font-size="15"');
	push @svg, _text(($left + $width - $right) / 2, $height - 12, 'middle', $plot{x});
	push @svg, _text(16, $middle, 'middle', $plot{y}, qq(transform="rotate(-90 16 $middle)"));
	foreach my $tick (grep { $_ >= $low && $_ <= $high } @ticks)
	{
		my $y = $py->($tick);
		push @svg, sprintf '<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>', $left, $y, $width - $right, $y;
		push @svg, _text($left - 8, $y + 4, 'end', sprintf '%g', $tick);
	}
	push @svg, map { _text($px->($_), $height - $bottom + 20, 'middle', $plot{at}[$_]) } 0 .. $last;

	foreach my $line (@lines)
	{
		my @points = map { [ $px->($_), $py->($line->{y}[$_]) ] } 0 .. $last;
		push @svg, sprintf '<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>',
		  join(' ', map { sprintf '%.1f,%.1f', @$_ } @points), $line->{colour};
		push @svg, map { sprintf '<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>', @$_, $line->{colour} } @points;
		$line->{end} = $points[-1][1];
	}
	# names at the ends, pushed apart where lines end close together
	my $lowest = $top;
	foreach my $line (sort { $a->{end} <=> $b->{end} } @lines)
	{
		$lowest = max($line->{end}, $lowest);
		push @svg, _text($width - $right + 10, $lowest + 4, 'start', $line->{name}, qq(style="fill:$line->{colour}"));
		$lowest += 16;
	}

	open my $out, '>:encoding(UTF-8)', $file or croak "$file: $!";
	print $out qq(<svg xmlns="http://www.w3.org/2000/svg" width="$width" height="$height" ),
	  qq(viewBox="0 0 $width $height" font-family="sans-serif" font-size="12">\n),
	  (map { "\t$_\n" } @svg), "</svg>\n";
	close $out or croak "$file: $!";
	return;
}

sub _text
{
	my ($x, $y, $anchor, $text, $more) = @_;
	return sprintf '<text x="%.1f" y="%.1f" text-anchor="%s" fill="#333"%s>%s</text>', $x, $y, $anchor,
	  $more ? " $more" : '', $text;
}

1;
