#!/bin/bash
cd /workspace || exit 1
cp script.txt schedule.txt
