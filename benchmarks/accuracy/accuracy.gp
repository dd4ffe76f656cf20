# SPDX-License-Identifier: Apache-2.0
# gnuplot -e "data='FILE'; image='FILE.svg'; first='adamw'; second='sgd'" accuracy.gp: what accuracy --plot draws.

if (image[strlen(image) - 3 : ] eq ".png") {
    set terminal pngcairo size 900,520 font "sans,11"
} else {
    set terminal svg size 900,520 font "sans,13" background "white"
}
set output image
set title "Training loss at the end, against the native run of the same seed"
set ylabel "difference, % (size; 0.0001: none)"
set logscale y 10
set yrange [5e-5:*]
set format y "%g"
set xrange [0.5:*]
set offsets 0, 0.5, 0, 0
set xtics rotate by -25
set grid y
set key outside top center horizontal
set datafile missing "?"
if (second eq "") {
    plot data using 1:3:xtic(2) title first with points pointtype 7 linecolor "#0072b2"
} else {
    plot data using ($1 - 0.1):3:xtic(2) title first with points pointtype 7 linecolor "#0072b2", \
         '' using ($1 + 0.1):4 title second with points pointtype 5 linecolor "#d55e00"
}
