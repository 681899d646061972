#!/bin/bash
cd /workspace || exit 1
mv memo.txt poem.txt
