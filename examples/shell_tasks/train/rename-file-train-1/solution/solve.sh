#!/bin/bash
cd /workspace || exit 1
mv guide.txt notes.txt
